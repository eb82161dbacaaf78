"""Whatever is in a file: a finding or a clear message, never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from effectonce_lint import designs
from effectonce_lint.designs.checks import check
from effectonce_lint.python.modules import MAX_FILE_BYTES

from .conftest import BAD, Lint


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"def charge(:\n", "not valid Python"),
        (b"x = '\n", "not valid Python"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00", "not valid Python"),
        (b"import celery\nx = '\x00'\n", "not valid Python"),
        ("# -*- coding: ascii -*-\nx = '\u00e9'\n".encode(), "not valid Python"),
        (b"# -*- coding: utf-8 -*-\nx = '\xe9'\n", "not valid Python"),
        (b"# -*- coding: no-such-thing -*-\n", "not valid Python"),
        (b"(" * 5000, "not valid Python"),
        (b"x = " + b"-" * 200_000 + b"1\n", "nested too deeply"),
        (b"print 'hello'\n", "not valid Python"),
    ],
)
def test_a_file_that_is_not_python_is_said_to_be_none(lint: Lint, folder: Path, content: bytes, says: str) -> None:
    (folder / "odd.py").write_bytes(content)
    done = lint("--output-format", "concise", "odd.py")
    assert done.code == 2
    assert says in done.out
    assert "EO900" in done.out
    assert done.err == ""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xef\xbb\xbfimport celery\n",
        b"# -*- coding: latin-1 -*-\nimport celery\nx = '\xe9'\n",
        b"import celery\r\nx = 1\r\n",
        b"import celery\nx = '\\d'\n",
        b"import celery\nx = " + b" + ".join([b"a"] * 2000) + b"\n",
        b"import celery\nx = " + b"[" * 90 + b"]" * 90 + b"\n",
        b"import celery\nx = f(" + b"lambda: (" * 60 + b"1" + b")" * 60 + b")\n",
        b"from celery import shared_task\n@shared_task\ndef f(x):\n    return " + b"f(" * 80 + b"x" + b")" * 80 + b"\n",
        b"from celery import shared_task\n@shared_task\ndef f(x):\n  x" + b".a" * 2500 + b"()\n",
        b"import celery\nclass A(A): pass\nclass B(C): pass\nclass C(B): pass\nx = x\ny = z\nz = y\n",
        b"from celery import shared_task\nfrom odd import *\nfrom .odd import f as g\n@shared_task\ndef f(): g()\n",
    ],
)
def test_odd_python_is_python(lint: Lint, folder: Path, content: bytes) -> None:
    (folder / "odd.py").write_bytes(content)
    done = lint("odd.py", "--no-cache")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(("All clear.\n", "No consumers found. "))
    assert done.out.endswith("none skipped.\n")


def test_functions_that_call_each_other_in_a_circle_end(lint: Lint, folder: Path) -> None:
    callees = [(n, [(n + 1) % 30, n * 7 % 30, n * 3 % 30]) for n in range(30)]
    calls = "\n".join(f"def f{n}(x):\n" + "".join(f"    f{m}(x)\n" for m in each) for n, each in callees)
    (folder / "odd.py").write_text(f"from celery import shared_task\n{calls}\n@shared_task\ndef go(x):\n    f0(x)\n")
    assert lint("odd.py").code == 0


def test_a_file_of_a_million_lines_is_not_looked_at(lint: Lint, folder: Path) -> None:
    (folder / "long.py").write_bytes(b"x = 1\n" * 1_000_000)
    done = lint("--output-format", "concise")
    assert done.code == 2
    assert "larger than 4 MiB" in done.out
    assert MAX_FILE_BYTES == 4 * 1024 * 1024


def test_a_long_file_below_that_is(lint: Lint, folder: Path) -> None:
    (folder / "long.py").write_bytes(b"x = 1\n" * 60_000 + BAD.encode())
    assert lint("--output-format", "concise").rules() == ["P11", "EO303"]


def test_links_in_a_circle_end(lint: Lint, folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "bad.py").write_text(BAD)
    (folder / "a" / "back").symlink_to(folder / "a", target_is_directory=True)
    (folder / "again.py").symlink_to(folder / "a" / "bad.py")
    (folder / "loop.py").symlink_to(folder / "loop.py")
    (folder / "gone.py").symlink_to(folder / "nowhere.py")
    assert lint("--output-format", "concise", "--no-cache").rules() == ["P11", "EO303"]


def test_a_link_out_of_the_tree_is_not_followed_unless_it_is_named(
    lint: Lint, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whoever can add a link to a repository must not choose what is printed, and rewritten with --fix."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "bad.py").write_text(BAD)
    (folder / "file.py").symlink_to(elsewhere / "bad.py")
    (folder / "linked").symlink_to(elsewhere, target_is_directory=True)
    assert lint("--output-format", "concise", "--no-cache").rules() == []
    assert lint("file.py", "--output-format", "concise", "--no-cache").rules() == ["P11", "EO303"]
    (folder / "tree").symlink_to(elsewhere, target_is_directory=True)
    assert lint("tree", "--output-format", "concise", "--no-cache").rules() == ["P11", "EO303"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a thing of Unix")
def test_a_pipe_is_no_file(lint: Lint, folder: Path) -> None:
    os.mkfifo(folder / "pipe.py")
    assert lint().code == 0
    assert lint("pipe.py").code == 2


def test_names_with_anything_in_them_do_not_reach_the_terminal(lint: Lint, folder: Path) -> None:
    """F65: escape sequences of a source file are shown, not obeyed."""
    (folder / "bad.py").write_text(BAD.replace('currency="eur"', 'currency="\x1b[31m\x07"'))
    assert "\x1b" not in lint("bad.py").out
    assert "\\x1b" in lint("bad.py").out


# -- designs

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("bomb.yaml", BOMB.encode(), "aliases expand"),
        ("deep.yaml", b"[" * 5000, "nested more than"),
        ("deep.json", b'{"a":' * 5000, "nested more than"),
        ("wide.yaml", b"- x\n" * 70_000, "more than 60000 nodes"),
        ("large.yaml", b"# " + b"x" * 1_100_000, "larger than"),
        ("wrong.yaml", b"a: [1, 2\n", "not valid YAML"),
        ("wrong.json", b'{"a": }', "not valid JSON"),
        ("anchor.yaml", b"a: *nobody\n", "there is no anchor"),
        ("self.yaml", b"a: &a [*a]\n", ""),
        ("binary.yaml", b"\x00\x01\xff", "not text"),
        ("binary.md", b"\xff\xfe\x00", "not text"),
        ("future.yaml", b"asyncapi: 4.0.0\ninfo: {}\n", "AsyncAPI 4.0.0 is not known here; 2.0 to 2.6 and 3.0 are"),
        ("no-version.yaml", b"asyncapi:\nchannels: {}\n", "AsyncAPI ? is not known here"),
    ],
)
def test_a_design_that_cannot_be_read_says_why(lint: Lint, folder: Path, name: str, content: bytes, says: str) -> None:
    (folder / name).write_bytes(content)
    done = lint("--output-format", "concise", name)
    assert done.err == ""
    if says:
        assert done.code == 2
        assert says in done.out


def test_yaml_that_is_no_design_is_left_alone_unless_it_is_asked_for(lint: Lint, folder: Path) -> None:
    (folder / "chart.yaml").write_text("{{ template }}\nname: [\n")
    assert lint().code == 0
    assert lint("chart.yaml").code == 2


def test_an_unknown_version_is_said_even_where_nobody_asked(lint: Lint, folder: Path) -> None:
    (folder / "api.yaml").write_text("asyncapi: 9.9.9\n")
    assert lint().code == 2


@pytest.mark.parametrize(
    "text",
    [
        "asyncapi: 3.0.0\n",
        "asyncapi: 3.0.0\noperations: 5\nchannels: []\n",
        "asyncapi: 2.6.0\nchannels:\n  a:\n    publish: x\n",
        "asyncapi: 3.0.0\noperations: {a: {action: receive, channel: {$ref: '#/x/y'}, traits: 3}}\n",
        "asyncapi: 3.0.0\noperations: {a: {$ref: '#/operations/a'}}\n",
        "consumers: 7\n",
        "consumers:\n  - 1\n  - [2]\n  - {}\n",
        "services:\n  a: {image: x, environment: 5}\n",
        "Resources: {A: {Type: 'AWS::SQS::Queue'}, B: 3, C: {Type: 'AWS::SQS::Queue', Properties: 4}}\n",
        "Resources: {A: {Type: 'AWS::Lambda::EventSourceMapping', Properties: {EventSourceArn: []}}}\n",
        "service: a\nprovider: b\nfunctions: {f: {events: [{sqs: 3}, 4]}}\n",
        "components: [{id: q, type: queue}]\nconnections: [{from: q, to: q}, {from: q}, 3]\n",
        "- a\n- b\n",
        "just text\n",
        "---\n---\n",
    ],
)
def test_designs_of_odd_shapes_are_no_error(text: str) -> None:
    check(designs.read_design("/x.yaml", text.encode()))


@pytest.mark.parametrize("name", ["x.tf", "x.mmd", "x.md"])
@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "}", "}}}}", "|", "a = ", "a = {\n", "\x00", "<<EOF\n", "resource", 'resource "a" "b" {'),
        *("|-|\n|-|", "| a |\n|---|\n| b", "| consumer | effect |\n|---|---|\n|||||||\n|"),
        *("```mermaid\n", "```mermaid\nflowchart\nA--", "flowchart LR\nA-->|x", "graph TD\nA & B & --> C"),
        *("sequenceDiagram\nA->>B", "sequenceDiagram\n->>:x", "flowchart LR\n" + "A-->" * 3000),
    ],
)
def test_other_formats_of_odd_shapes_too(name: str, text: str) -> None:
    check(designs.read_design(f"/{name}", text.encode()))
