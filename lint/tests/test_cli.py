"""`effectonce-lint`: what it is told, what it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from .conftest import BAD, GOOD, Lint

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def two_files(folder: Path) -> None:
    (folder / "bad.py").write_text(BAD)
    (folder / "good.py").write_text(GOOD)


def concise(lint: Lint, *arguments: str) -> list[str]:
    return lint("--output-format", "concise", "--no-cache", *arguments).rules()


# -- exit codes


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["good.py"], 0),
        (["bad.py"], 1),
        ([], 1),
        (["bad.py", "--exit-zero"], 0),
        (["bad.py", "--select", "EO2"], 0),
        (["missing.py"], 2),
        (["--no-such-option"], 2),
        (["--output-format", "carved"], 2),
        (["--select", "EO7"], 2),
        (["--explain", "EO7"], 2),
        (["--baseline", "missing.json"], 2),
        (["--config", "missing.toml"], 2),
    ],
)
def test_the_exit_code_says_clean_found_or_could_not(lint: Lint, arguments: list[str], code: int) -> None:
    done = lint(*arguments)
    assert done.code == code
    assert (done.err.startswith("effectonce-lint: ")) == (code == 2)
    assert "Traceback" not in done.err


def test_it_says_its_version() -> None:
    project = tomllib.loads((ROOT / "lint" / "pyproject.toml").read_text())["project"]
    command = [sys.executable, "-m", "effectonce_lint", "--version"]
    assert subprocess.check_output(command, text=True) == f"effectonce-lint {project['version']}\n"


def test_a_wrong_command_line_says_where_to_read_on(lint: Lint) -> None:
    assert "effectonce-lint --help" in lint("--no-such-option").err


def test_a_file_that_cannot_be_read_outranks_what_was_found(lint: Lint, folder: Path) -> None:
    (folder / "broken.py").write_text("def charge(:\n")
    done = lint("--output-format", "concise", "--no-cache")
    assert done.code == 2
    assert done.rules() == ["P11", "EO303", "EO900"]


@pytest.mark.parametrize("module", ["effectonce_lint", "effectonce"])
def test_it_runs_as_a_module_and_without_typer(folder: Path, module: str) -> None:
    without = "import runpy, sys; sys.modules.update(typer=None, rich=None)"
    code = f"{without}; runpy.run_module({module!r}, run_name='__main__')"
    arguments = ["lint", "bad.py"] if module == "effectonce" else ["bad.py"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, cwd=folder
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "P11" in done.stdout


# -- which rules


def test_select_and_ignore_take_rules_and_their_beginnings(lint: Lint) -> None:
    assert concise(lint) == ["P11", "EO303"]
    assert concise(lint, "--select", "P11") == ["P11"]
    assert concise(lint, "--select", "EO3,EO4") == ["EO303"]
    assert concise(lint, "--ignore", "EO3") == ["P11"]
    assert concise(lint, "--select", "EO4", "--extend-select", "P11") == ["P11"]


def test_pyproject_is_read_and_the_command_line_comes_before_it(lint: Lint, folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.effectonce.lint]\nignore = ["EO303"]\n')
    assert concise(lint) == ["P11"]
    assert concise(lint, "--isolated") == ["P11", "EO303"]
    (folder / "pyproject.toml").write_text('[tool.effectonce.lint]\nselect = ["EO303"]\n')
    assert concise(lint) == ["EO303"]
    assert concise(lint, "--select", "P11") == ["P11"]


def test_rules_can_be_off_for_some_files(lint: Lint, folder: Path) -> None:
    (folder / "scripts").mkdir()
    (folder / "scripts" / "once.py").write_text(BAD)
    (folder / "pyproject.toml").write_text('[tool.effectonce.lint.per-file-ignores]\n"scripts/*" = ["P11", "EO3"]\n')
    assert concise(lint) == ["P11", "EO303"]
    assert concise(lint, "scripts") == []


def test_files_can_be_left_out(lint: Lint, folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.effectonce.lint]\nexclude = ["bad.py"]\n')
    assert concise(lint) == []
    assert concise(lint, "--isolated", "--exclude", "ba*.py") == []
    assert concise(lint, "bad.py") == ["P11", "EO303"], "what is named is looked at"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.effectonce.lint]\nselekt = []\n", "selekt"),
        ('[tool.effectonce.lint]\nselect = "P11"\n', "array"),
        ('[tool.effectonce.lint]\nignore = ["EO7"]\n', "EO7"),
        ("[tool.effectonce.lint\n", "not valid TOML"),
    ],
)
def test_wrong_settings_are_refused_by_name(lint: Lint, folder: Path, text: str, says: str) -> None:
    (folder / "pyproject.toml").write_text(text)
    done = lint()
    assert done.code == 2
    assert says in done.err
    assert "pyproject.toml" in done.err


# -- comments


@pytest.mark.parametrize(
    "changed",
    [
        BAD.replace('"eur")', '"eur")  # effectonce: ignore[P11, EO303] a test account'),
        BAD.replace('"eur")', '"eur")  # effectonce: ignore'),
        BAD.replace("    stripe", "    # effectonce: ignore[P11,EO303] a test account\n    stripe"),
        BAD.replace('"eur")', '"eur"  # effectonce: ignore\n    )'),
    ],
)
def test_a_comment_hides_what_it_names(lint: Lint, folder: Path, changed: str) -> None:
    (folder / "bad.py").write_text(changed)
    assert concise(lint) == []


def test_a_comment_at_the_consumer_hides_what_is_said_of_the_consumer(lint: Lint, folder: Path) -> None:
    (folder / "bad.py").write_text(BAD.replace("amount):", "amount):  # effectonce: ignore[P11] a test account"))
    assert concise(lint) == ["EO303"]


def test_a_comment_hides_nothing_else(lint: Lint, folder: Path) -> None:
    (folder / "bad.py").write_text(BAD.replace('"eur")', '"eur")  # effectonce: ignore[P11] a test account'))
    assert concise(lint) == ["EO303"]


def test_a_comment_that_hides_nothing_is_found_and_mended(lint: Lint, folder: Path) -> None:
    (folder / "good.py").write_text(GOOD.replace("amount):", "amount):  # effectonce: ignore[P11] old"))
    assert concise(lint, "good.py") == ["EO901"]
    assert lint("good.py", "--fix", "--no-cache").code == 0
    assert (folder / "good.py").read_text() == GOOD


def test_a_comment_for_a_rule_that_is_off_is_left_alone(lint: Lint, folder: Path) -> None:
    (folder / "good.py").write_text(GOOD.replace("amount):", "amount):  # effectonce: ignore[P11] old"))
    assert concise(lint, "good.py", "--ignore", "P11") == []


def test_a_comment_in_a_string_is_no_comment(lint: Lint, folder: Path) -> None:
    (folder / "bad.py").write_text(BAD.replace('"eur"', '"# effectonce: ignore[P11]"'))
    assert concise(lint) == ["P11", "EO303"]


def test_a_comment_hides_a_finding_whose_effect_is_in_another_file(lint: Lint, folder: Path) -> None:
    (folder / "gateway.py").write_text(
        "import stripe\n\n\ndef pay(amount):\n"
        "    stripe.Charge.create(amount=amount)  # effectonce: ignore[P11,EO303] the sandbox\n"
    )
    (folder / "bad.py").write_text(
        "from celery import shared_task\n\nfrom gateway import pay\n\n\n"
        "@shared_task\ndef charge(amount):\n    pay(amount)\n"
    )
    assert concise(lint) == []
    assert concise(lint, "bad.py") == [], "even where only the one file is asked for"


# -- the baseline


def test_a_baseline_hides_what_is_old_and_shows_what_is_new(lint: Lint, folder: Path) -> None:
    assert lint("--write-baseline", "base.json").out == "2 findings written to base.json\n"
    assert lint("--baseline", "base.json").code == 0
    (folder / "bad.py").write_text("# moved\n\n\n" + BAD)
    assert lint("--baseline", "base.json").code == 0, "lines may move"
    (folder / "bad.py").write_text(BAD + BAD.split("\n\n\n")[1].replace("def charge", "def charge_again"))
    assert concise(lint, "--baseline", "base.json") == ["P11", "EO303"]


def test_the_baseline_can_stand_in_pyproject(lint: Lint, folder: Path) -> None:
    lint("--write-baseline", "base.json")
    (folder / "pyproject.toml").write_text('[tool.effectonce.lint]\nbaseline = "base.json"\n')
    assert lint().code == 0


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"version": 2, "findings": {}}', '{"version": 1, "findings": {"a": {}}}']
)
def test_what_is_no_baseline_is_refused(lint: Lint, folder: Path, text: str) -> None:
    (folder / "base.json").write_text(text)
    done = lint("--baseline", "base.json")
    assert done.code == 2
    assert "--write-baseline" in done.err


# -- the rest


def test_explain_tells_a_rule_by_id_or_name(lint: Lint) -> None:
    by_id = lint("--explain", "P11")
    assert by_id.code == 0
    for words in ("unguarded-effect", "Instead of", "write", "idempotency_key", "ignore[P11]"):
        assert words in by_id.out
    assert lint("--explain", "p-11").out == by_id.out == lint("--explain", "unguarded-effect").out
    assert [line.split()[0] for line in lint("--explain").out.splitlines()][:2] == ["P11", "EO101"]


def test_statistics_count_by_rule(lint: Lint) -> None:
    lines = lint("--statistics").out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["1", "EO303"], ["1", "P11"]]


def test_a_clean_run_says_so_unless_quiet(lint: Lint) -> None:
    assert lint("good.py").out == "All clear.\n1 file, 1 consumer (celery 1), 1 handler judged, none skipped.\n"
    assert lint("good.py", "--quiet").out == ""


def test_the_output_can_go_into_a_file(lint: Lint, folder: Path) -> None:
    done = lint("--output-format", "json", "--output-file", "found.json")
    assert (done.code, done.out) == (1, "")
    assert [each["rule"] for each in json.loads((folder / "found.json").read_text())["findings"]] == ["P11", "EO303"]
    assert lint("--output-file", "missing/found.json").code == 2


def test_folders_that_are_not_ours_are_not_entered_unless_named(lint: Lint, folder: Path) -> None:
    for name in ("node_modules", ".venv", "build"):
        (folder / name).mkdir()
        (folder / name / "bad.py").write_text(BAD)
    (folder / "env39").mkdir()
    (folder / "env39" / "pyvenv.cfg").touch()
    (folder / "env39" / "bad.py").write_text(BAD)
    assert concise(lint) == ["P11", "EO303"]
    assert concise(lint, "build") == ["P11", "EO303"]


def test_named_files_can_be_treated_like_those_of_a_folder(lint: Lint, folder: Path) -> None:
    """As pre-commit needs it, which names every file."""
    (folder / "chart.yaml").write_text("{{ template }}\nname: [\n")
    (folder / "pyproject.toml").write_text('[tool.effectonce.lint]\nexclude = ["bad.py"]\n')
    assert lint("chart.yaml", "bad.py").code == 2
    assert lint("chart.yaml", "bad.py", "--as-found").code == 0


def test_the_hook_of_pre_commit_is_a_command_line_that_we_take(lint: Lint) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, *options = hook["entry"].split()
    assert program == "effectonce-lint"
    assert hook["additional_dependencies"] == ["./lint"]  # pre-commit installs the root of a clone, and beside it these
    assert lint(*options, "good.py").code == 0
    assert lint(*options, "bad.py").code == 1


def test_a_file_that_is_named_twice_is_looked_at_once(lint: Lint) -> None:
    assert concise(lint, "bad.py", "bad.py", ".") == ["P11", "EO303"]


def test_whoever_reads_may_stop_reading_and_may_lack_letters(folder: Path) -> None:
    (folder / "consumer.py").write_text(BAD.replace('"eur"', '"eur", description="caf\u00e9"') * 400)
    command = [sys.executable, "-m", "effectonce_lint", "--no-cache", "--output-format"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    whole = subprocess.run([*command, "full"], capture_output=True, env=environment, check=False)
    assert (whole.returncode, whole.stderr) == (1, b"")
    assert b"caf\\xe9" in whole.stdout
    with subprocess.Popen([*command, "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_in_markdown_only_a_comment_of_markdown_hides(lint: Lint, folder: Path) -> None:
    """A page that explains `# effectonce: ignore[P11]` has nothing to be told about it."""
    table = "| Consumer | Queue | Effect | Dedup |\n|---|---|---|---|\n| mailer | users | sends mail | none |{}\n"
    told = "Write `# effectonce: ignore[P11] why`:\n\n```python\nf()  # effectonce: ignore[P11] why\n```\n\n"
    (folder / "design.md").write_text(told + table.format(""))
    assert [line.split()[1] for line in lint("--output-format", "concise", "design.md").out.splitlines()[:-2]] == [
        "P11"
    ]
    (folder / "design.md").write_text(told + table.format(" <!-- effectonce: ignore[P11] nobody minds -->"))
    assert lint("design.md").code == 0
