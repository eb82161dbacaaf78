"""What the documentation says is so: its blocks run, its links lead somewhere, its commands and extras exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from docs.hooks import diagrams, llms
from effectonce import once
from effectonce.cli import main

from .pages import DOCS, PARSED, PICTURES, ROOT, RUN, blocks, commands, headings, missing_line, pages, servers_of

PAGES = pages()
SITE = (ROOT / "mkdocs.yml").read_text()
#: In these servers a test process has no database of its own; pages use the names that stand in them.
WITHOUT_DATABASES = {"rabbitmq_url", "nats_url", "kafka_url", "one_sqs_url", "pubsub_url", "dynamodb_url"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_of_a_kind_that_is_run_or_a_picture(page: Path) -> None:
    kinds = {block.language for block in blocks(page.read_text())}
    assert kinds <= {*RUN, *PARSED, *PICTURES}, "see tests/docs/pages.py"


@pytest.mark.quick_on(
    "README.md",
    "docs/start.md",
    "docs/guides/worker.md",
    "docs/guides/inbox.md",
    "docs/guides/http.md",
    "docs/guides/outbox.md",
    "docs/guides/intents.md",
    "docs/guides/saga.md",
    "docs/guides/nats.md",
)
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page.read_text())], ids=name)
def test_every_block_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = blocks(page.read_text())
    addresses = {written: request.getfixturevalue(fixture) for written, fixture in servers_of(found).items()}
    if WITHOUT_DATABASES.intersection(servers_of(found).values()):
        request.getfixturevalue("one_at_a_time")
    sources = f"{ROOT / 'src'}:{ROOT / 'lint' / 'src'}:{ROOT}"  # this tree's, also where another one is installed
    environment = {**os.environ, "PYTHONPATH": sources, "NO_COLOR": "1", "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-m", "tests.docs.session", str(page)],
        input=json.dumps(addresses),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if "```mermaid" in page.read_text()], ids=name)
def test_its_diagrams_are_drawn_as_they_are_written(page: Path) -> None:
    text = page.read_text()
    found = list(diagrams.BLOCK.finditer(text))
    assert len(found) == text.count("```mermaid"), "a diagram begins with `%% alt: what it shows`"
    for match in found:
        for scheme in diagrams.THEMES:
            drawn = diagrams.FOLDER / diagrams.file_name(match["source"], scheme)
            assert drawn.exists(), f"run `make pictures`: this has changed since it was drawn:\n{match['source']}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_its_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        assert not anchor or path.suffix != ".md" or anchor in headings(path), link


def test_a_language_model_gets_the_text_of_a_page_its_pictures_and_its_public_names() -> None:
    text = "# Title\n\n```console\n$ true\n```\n\nSee [one](a.md). And two.\n\n"
    text += "```mermaid\n%% alt: a box\nx\n```\n\n::: effectonce.once\n"
    page = llms.Page("Guides", "Title", "title.html", text)
    assert "## Guides\n\n- [Title](title.html): See one.\n" in llms.contents([page])
    full = llms.full_text([page])
    assert "(Picture: a box)" in full
    assert "once(store: Store, *, scope: str | None = None" in full
    assert str(once.__doc__).partition("\n")[0] in full


def test_what_is_installed_and_made_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for block in blocks(page.read_text()):
            for command, _ in commands(block) if block.language == "console" else ():
                for wanted in re.findall(r"effectonce\[([\w,]+)\]", command):
                    assert set(wanted.split(",")) <= set(extras), f"{page}: {command}"
                if made := re.match(r"make ([\w-]+)", command):
                    assert made[1] in targets, f"{page}: {command}"


def shows_help(command: list[str]) -> bool:
    try:
        return main([*command, "--help"]) == 0
    except SystemExit as end:  # as argparse ends, which reads the options of `lint`
        return end.code == 0


def test_commands_in_passing_take_the_options_that_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Those in console blocks are run; these stand in sentences and pictures."""
    for page in PAGES:
        for line in re.findall(r"effectonce ([a-z]+(?: [a-z]+)?[^`\n]*--[^`\n]*)", page.read_text()):
            words = line.split()
            for named in (words[:2], words[:1]):
                if shows_help(named):
                    break
            help_ = capsys.readouterr().out
            for option in re.findall(r"(?<=\s)(--[a-z][a-z-]*)", line):
                assert option in help_, f"{page}: effectonce {line}"


def test_every_page_is_in_the_navigation() -> None:
    for page in PAGES:
        assert DOCS not in page.parents or str(page.relative_to(DOCS)) in SITE, f"{page}: no reader would find it"


@pytest.mark.parametrize("page", sorted((DOCS / "guides").glob("*.md")), ids=name)
def test_a_guide_has_a_picture_says_what_a_kill_does_its_limits_and_what_is_next(page: Path) -> None:
    text = page.read_text()
    assert "```mermaid" in text
    found = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert "Limits" in found
    assert found[-1] == "Next"
    assert "When it is killed" in found or page.stem == "testing"  # which is about nothing else


# -- the runner itself ----------------------------------------------------------------------------------------


def run(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    page = tmp_path / "page.md"
    page.write_text(text)
    command = [sys.executable, "-m", "tests.docs.session", str(page)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, input="{}", cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "text",
    [
        "```python\nassert 1 == 2\n```",
        "```console\n$ false\n```",
        "```console\n$ echo one\ntwo\n```",
        "<!-- exits 1 -->\n```console\n$ true\n```",
        "```json\n{\n```",
        "```sql\nSELECT nothing FROM nowhere;\n```",
        '```python title="a.py"\nraise SystemExit(3)\n```\n```console\n$ python a.py\n```',
    ],
)
def test_a_block_that_does_not_do_what_it_says_fails_its_page(tmp_path: Path, text: str) -> None:
    assert run(tmp_path, text).returncode != 0


def test_a_page_is_one_program(tmp_path: Path) -> None:
    text = (
        "```python\nimport asyncio\nx = 1\nawait asyncio.sleep(0)\n```\n"
        '- in a list:\n\n  ```python title="a.py"\n  print("from", "a")\n  ```\n'
        "```console\n$ python a.py\nfrom …\n```\n```python\nassert x == 1\n```"
    )
    done = run(tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")


def test_lines_are_looked_for_in_their_order() -> None:
    assert missing_line("a\nb 12 ms\nc", ["a", "b … ms", "c"]) is None
    assert missing_line("a\nb", ["b", "a"]) == "a"
