"""The commands on a store, and how the command line says no."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

import effectonce as eo
from effectonce.cli import _lint
from effectonce.cli.app import COMMANDS
from effectonce.cli.groups import first_sentence

from .conftest import Cli, Run

CANARY = "s3cret-canary"
ROOT = Path(__file__).parents[2]


def one_line(text: str, code: str) -> bool:
    return text.startswith(f"effectonce: [{code}] ") and text.count("\n") == 1


# -- the commands


def test_help_lists_every_command(run: Run) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        commands = done.stdout.split("Commands:\n")[1].split("\n\n")[0].split("\n")
        assert [line.split()[0] for line in commands] == [
            "demo", "run", "relay", "migrate", "check", "doctor", "records", "inbox", "outbox", "dlq", "intents",
            "sagas", "find", "verify", "asyncapi", "lint", "dashboard", "explain",
        ]  # fmt: skip
        assert all(f"\n    {code} " in done.stdout for code in (0, 1, 2, 130)), "and what its exit codes mean"


@pytest.mark.parametrize(
    ("help", "line"),
    [
        ("List what is in doubt. It is read\n  only.\n\nMore.", "List what is in doubt."),
        ("List what is\nin doubt", "List what is in doubt"),
        ("Redrive 1.5 times.", "Redrive 1.5 times."),
    ],
)
def test_a_list_of_commands_has_the_first_sentence_of_each(help: str, line: str) -> None:
    assert first_sentence(help) == line


def test_version(run: Run) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run("--version").stdout == f"effectonce {version}\n"
    assert run("-V").stdout == f"effectonce {version}\n"


def test_migrate_makes_the_tables_and_may_be_repeated(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        done = run("migrate", "--store", "sqlite:///shop.db")
        assert (done.returncode, done.stdout, done.stderr) == (0, "sqlite:///shop.db is ready\n", "")
    tables = sqlite3.connect(tmp_path / "shop.db").execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    assert "effectonce_records" in {name for (name,) in tables}
    done = run("migrate", "--store", "sqlite:///shop.db", "--json")
    assert json.loads(done.stdout) == {"store": "sqlite:///shop.db", "migrated": True}


def test_migrate_dry_run_says_whether_there_is_anything_to_do(inline: Cli, postgres_url: str, unique_name: str) -> None:
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}prefix={unique_name}"
    assert inline("migrate", "--store", url, "--dry-run", "--json").json["needed"] is True
    assert inline("check", "--store", url).code == 1, "and does nothing"
    assert inline("migrate", "--store", url).code == 0
    assert inline("migrate", "--store", url, "--dry-run").out.endswith(" is ready as it is\n")


def test_migrate_sql_prints_a_script_that_makes_the_tables_and_touches_nothing(run: Run, tmp_path: Path) -> None:
    done = run("migrate", "--store", "sqlite:///shop.db", "--sql")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "shop.db").exists()
    sqlite3.connect(":memory:").executescript(done.stdout)
    assert (
        json.loads(run("migrate", "--store", "sqlite:///shop.db", "--sql", "--json").stdout)["sql"].strip()
        == done.stdout.strip()
    )


def test_migrate_sql_of_a_store_without_a_schema_says_so(run: Run) -> None:
    done = run("migrate", "--store", "memory://", "--sql")
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr, "configuration")


def test_check_says_that_a_store_is_fine(run: Run) -> None:
    run("migrate", "--store", "sqlite:///shop.db")
    done = run("check", "--store", "sqlite:///shop.db")
    assert (done.returncode, done.stdout) == (0, "sqlite:///shop.db can keep its promise\n")
    assert json.loads(run("check", "--store", "sqlite:///shop.db", "--json").stdout) == {
        "store": "sqlite:///shop.db",
        "ok": True,
    }


def test_check_exits_with_1_and_the_reason(run: Run) -> None:
    done = run("check", "--store", "sqlite:///nowhere/shop.db")
    assert (done.returncode, done.stdout) == (1, "")
    assert one_line(done.stderr, "schema-missing")
    done = run("check", "--store", "sqlite:///nowhere/shop.db", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert (report["ok"], report["code"]) == (False, "schema-missing")
    assert "check its name" in report["error"]


def test_the_store_may_come_from_the_environment(run: Run) -> None:
    run("migrate", EFFECTONCE_STORE="sqlite:///shop.db")
    done = run("check", EFFECTONCE_STORE="sqlite:///shop.db")
    assert (done.returncode, done.stdout) == (0, "sqlite:///shop.db can keep its promise\n")


@pytest.mark.parametrize("server", ["postgres_url", "mariadb_url"])
def test_a_server_wants_migrate_once(run: Run, request: pytest.FixtureRequest, unique_name: str, server: str) -> None:
    url = request.getfixturevalue(server)
    url += f"{'&' if '?' in url else '?'}prefix={unique_name}"
    before = run("check", "--store", url)
    assert before.returncode == 1
    assert one_line(before.stderr, "schema-missing")
    assert "effectonce migrate" in before.stderr
    assert run("migrate", "--store", url).returncode == 0
    assert run("check", "--store", url).returncode == 0


# -- where its settings come from


def test_a_setting_is_the_option_else_the_environment_else_the_project(
    inline: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.effectonce]\nstore = "sqlite:///project.db"\n')
    assert inline("check", "--json").json["store"] == "sqlite:///project.db"
    monkeypatch.setenv("EFFECTONCE_STORE", "sqlite:///environment.db")
    assert inline("check", "--json").json["store"] == "sqlite:///environment.db"
    for option in ("--store", "-s"):
        assert inline("check", "--json", option, "sqlite:///given.db").json["store"] == "sqlite:///given.db"


def test_a_missing_setting_is_an_error_that_shows_how_to_set_it(inline: Cli) -> None:
    for command in (["check"], ["migrate"], ["records", "list"], ["outbox", "stats"], ["doctor"], ["relay"]):
        done = inline(*command)
        assert (done.code, done.out) == (2, "")
        assert one_line(done.err, "configuration")
        assert all(word in done.err for word in ("--store", "EFFECTONCE_STORE", "[tool.effectonce]"))


def test_a_project_that_cannot_be_read_is_one_line(inline: Cli, tmp_path: Path) -> None:
    for text in ("[tool.effectonce\n", "[tool.effectonce]\nstore = 7\n"):
        (tmp_path / "pyproject.toml").write_text(text)
        done = inline("check")
        assert (done.code, done.out) == (2, "")
        assert one_line(done.err, "configuration")


def test_the_password_of_the_project_is_never_printed(inline: Cli, tmp_path: Path) -> None:
    """F66"""
    (tmp_path / "pyproject.toml").write_text(f'[tool.effectonce]\nstore = "redis://u:{CANARY}@127.0.0.1:1"\n')
    for command in (["check"], ["migrate"], ["records", "stats"], ["doctor"]):
        done = inline(*command)
        assert done.code in (1, 2)
        assert "127.0.0.1:1" in done.out + done.err
        assert CANARY not in done.out + done.err


def test_the_shell_completes_commands_and_their_options(run: Run) -> None:
    for words, at, expected in (
        ("effectonce rec", 1, "records"),
        ("effectonce records pur", 2, "purge"),
        ("effectonce demo --cr", 2, "--crash"),  # this one and the next need no typer when they are run
        ("effectonce lint --color al", 3, "always"),
    ):
        done = run(_EFFECTONCE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(at))
        assert done.stdout.split() == [expected]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("effectonce records list --state f", {"failed", "failed-or-refused"}),
        ("effectonce outbox list --state wa", {"waiting"}),
        ("effectonce doctor --fail-on n", {"note"}),
        ("effectonce relay --order ", {"key", "none"}),
        ("effectonce dlq list shop:worker orders --why po", {"poison"}),
    ],
)
def test_the_shell_completes_values(run: Run, words: str, expected: set[str]) -> None:
    at = str(len(words.split(" ")) - 1)
    done = run(_EFFECTONCE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=at)
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".bash_completions/effectonce.sh"),
        ("zsh", ".zfunc/_effectonce"),
        ("fish", ".config/fish/completions/effectonce.fish"),
    ],
)
def test_completion_is_installed_for_a_shell(run: Run, tmp_path: Path, shell: str, file: str) -> None:
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    done = run("--install-completion", shell, **named)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"complete_{shell}" in (tmp_path / file).read_text()


def test_help_loads_no_command_and_hardly_more_than_typer(environment: dict[str, str]) -> None:
    """Within twice the time of `import typer`: what takes time is what is imported."""
    script = "import sys; from effectonce.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    loaded = set(done.stderr.split())
    assert not loaded & {
        "asyncio",
        "rich",
        "tomllib",
        "effectonce.store",
        "effectonce.public",
        "effectonce.cli.dead_letters",
    }
    assert len({name for name in loaded if name.startswith("effectonce")}) <= 13


# -- how it says no


def test_an_unknown_scheme_names_those_that_are_known(run: Run) -> None:
    done = run("migrate", "--store", "orracle://h/db")
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr, "unknown-scheme")
    assert "postgresql://" in done.stderr


def test_a_missing_driver_names_the_command_that_installs_it(run: Run, without: Callable[..., str]) -> None:
    done = run("check", "--store", "redis://localhost", PYTHONPATH=without("hiredis", "redis"))
    assert done.returncode == 2
    assert one_line(done.stderr, "missing-driver")
    assert "pip install 'effectonce[redis]'" in done.stderr


def test_a_wrong_option_names_those_that_exist(run: Run) -> None:
    done = run("check", "--store", "sqlite:///shop.db?sinchronous=full")
    assert done.returncode == 2
    assert one_line(done.stderr, "invalid-option")
    assert "synchronous" in done.stderr


def test_a_wrong_command_line_is_a_two_line_error(run: Run) -> None:
    for arguments in (["migrat", "x"], ["migrate", "--bogus", "x"], ["check", "a", "b"], ["records", "shwo"]):
        done = run(*arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        first, second = done.stderr.splitlines()
        assert first.startswith("effectonce: ")
        assert second.startswith("Try: effectonce")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["migrat"], "Did you mean migrate?"),
        (["records", "shwo"], "Did you mean show?"),
        (["records", "purge", "--strore", "x"], "Did you mean --store?"),
        (["demo", "--crahs"], "Did you mean --crash?"),
        (["lint", "--slect", "P11"], "Did you mean --select"),
        (["explain", "in-doub"], "Did you mean in-doubt"),
        (["records", "list", "sqlite:///shop.db"], "A URL goes with an option: --store URL or --broker URL"),
        (["doctor", "sqlite:///shop.db"], "a URL goes with an option: --store URL or --broker URL"),
    ],
)
def test_a_mistyped_word_is_answered_with_what_was_meant(inline: Cli, arguments: list[str], meant: str) -> None:
    done = inline(*arguments)
    assert (done.code, done.out) == (2, "")
    assert meant in done.err


def test_a_word_like_no_other_has_no_suggestion(inline: Cli) -> None:
    assert "Did you mean" not in inline("quux").err + inline("records", "--quux").err


def commands() -> list[list[str]]:
    """Every command, and every subcommand."""
    found = []
    for name, entry in COMMANDS.items():
        command = getattr(import_module(f"effectonce.cli.{entry.module}"), name)
        found.append([name])
        if isinstance(command, typer.Typer):
            found += [[name, subcommand] for subcommand in get_command(command).commands]
    return found


@pytest.mark.parametrize("columns", ["60", "80"])
@pytest.mark.parametrize("words", [words for words in commands() if words != ["lint"]], ids=" ".join)
def test_help_cuts_nothing_and_explains_every_option(
    inline: Cli, monkeypatch: pytest.MonkeyPatch, words: list[str], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = inline(*words, "--help").out
    assert text.lower().startswith(f"usage: effectonce {words[0]}")
    assert "…" not in text
    assert not re.search(r"\w\.\.\.$", text, re.MULTILINE), "click cuts like this"
    assert max(map(len, text.splitlines())) <= int(columns)


def test_an_option_means_the_same_in_every_command() -> None:
    """Its help is the same sentence everywhere, except where a command gives it another job."""
    meanings: dict[str, set[str]] = {}
    for words in commands():
        if words[0] in ("demo", "lint"):  # not typer's
            continue
        command = getattr(import_module(f"effectonce.cli.{COMMANDS[words[0]].module}"), words[0])
        if len(words) == 2:
            parameters = get_command(command).commands[words[1]].params
        elif isinstance(command, typer.Typer):
            parameters = []
        else:
            single = typer.Typer(add_completion=False)
            single.command()(command)
            parameters = get_command(single).params
        for parameter in parameters:
            if parameter.opts[0].startswith("-"):
                assert parameter.help, (words, parameter.opts)
                meanings.setdefault(max(parameter.opts, key=len), set()).add(parameter.help)
    varying = {option for option, helps in meanings.items() if len(helps) > 1}
    # `find` searches a scope beside others, `inbox purge` deletes by age, the inbox has a table of its own, and only
    # what calls an API, unlike a record, is repeated under another key.
    assert varying == {
        "--limit", "--all", "--state", "--done", "--retry", "--scope", "--older-than", "--table", "--worker",
    }  # fmt: skip


@pytest.mark.parametrize("group", [words[0] for words in commands() if words[1:] == ["list"]])
def test_a_list_shows_a_hundred_unless_it_is_asked_for_more(group: str) -> None:
    command = get_command(getattr(import_module(f"effectonce.cli.{COMMANDS[group].module}"), group))
    (limit,) = [parameter for parameter in command.commands["list"].params if "--limit" in parameter.opts]
    assert limit.default == 100


def test_without_typer_there_are_still_demo_version_and_help(run: Run, without: Callable[..., str]) -> None:
    bare = without("typer", "click", "rich")
    done = run("migrate", "--store", "sqlite:///shop.db", PYTHONPATH=bare)
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr, "missing-driver")
    assert "pip install 'effectonce[cli]'" in done.stderr
    assert run("--version", PYTHONPATH=bare).returncode == 0
    assert run("demo", PYTHONPATH=bare).returncode == 0
    shown = run("--help", PYTHONPATH=bare)
    assert shown.returncode == 0
    assert all(word in shown.stdout for word in ("demo", "migrate", "check", "effectonce[cli]"))


def test_lint_forwards_its_arguments_to_the_checker(run: Run) -> None:
    done = run("lint", "--explain", "P11")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("P11: ")
    wrong = run("lint", "--no-such-option")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("effectonce lint: ")
    assert wrong.stderr.endswith("Try: effectonce lint --help\n")


def test_a_checker_that_cannot_be_imported_is_not_taken_for_one_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "effectonce_lint.cli", None)
    with pytest.raises(ModuleNotFoundError, match=r"effectonce_lint\.cli"):
        _lint([])


def test_without_the_checker_lint_names_the_install_command(run: Run, without: Callable[..., str]) -> None:
    bare = without("effectonce_lint")
    done = run("lint", "src", PYTHONPATH=bare)
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr, "missing-driver")
    assert "pip install effectonce-lint" in done.stderr
    words = {"COMP_WORDS": "effectonce lint --col", "COMP_CWORD": "2"}
    completed = run(_EFFECTONCE_COMPLETE="complete_bash", PYTHONPATH=bare, **words)
    assert completed.stderr == ""


def test_the_quick_commands_do_not_load_typer(environment: dict[str, str]) -> None:
    script = "import sys; from effectonce.cli import main; main(['--version']); assert 'typer' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, timeout=60)


def test_control_characters_in_a_url_do_not_reach_the_terminal(run: Run) -> None:
    """F65"""
    done = run("check", "--store", "bogus\x1b[31m\r\nforged://x")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert one_line(done.stderr, "unknown-scheme")


@pytest.mark.parametrize("scheme", ["redis", "postgresql", "mysql", "mariadb"])
def test_an_unreachable_server_is_one_line_without_its_password(run: Run, scheme: str) -> None:
    """F66"""
    url = f"{scheme}://shop:{CANARY}@127.0.0.1:1/db"
    if scheme == "redis":
        url = url.removesuffix("db")
    for command, code in (("check", 1), ("migrate", 2)):
        done = run(command, "--store", url)
        assert done.returncode == code
        assert one_line(done.stderr, "store-unavailable")
        assert "127.0.0.1:1" in done.stderr
        assert CANARY not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--store", "bogus://u:{0}@h"],
        ["check", "--store", "redis://u:{0}@h:port"],
        ["check", "--store", "redis://u:{0}@[::"],
        ["check", "--store", "redis://u:{0}@h/0?bogus=1"],
        ["check", "--store", "redis://h/0?password={0}"],
        ["check", "--store", "sqlite://u:{0}@h/shop.db"],
        ["redis://u:{0}@h"],
        ["check", "redis://u:{0}@h"],
        ["check", "redis://u:{0}@h", "redis://u:{0}@h"],
        ["check", "--url=redis://u:{0}@h"],
        ["check", "--redis://u:{0}@h"],
        ["demo", "redis://u:{0}@h"],
        ["migrate", "--sql", "--store", "redis://u:{0}@h"],
        ["migrate", "--sql", "--store", "postgresql://u:{0}@h/db"],
        ["migrate", "--sql", "--json", "--store", "postgresql://u:{0}@h/db"],
    ],
)
def test_no_password_is_ever_printed(inline: Cli, arguments: list[str]) -> None:
    """F66: whatever the mistake in the command line."""
    for password in (CANARY, "s3cret%2Dcanary", "s3@cret-canary"):
        done = inline(*(argument.format(password) for argument in arguments))
        output = done.out + done.err
        assert output
        assert not any(secret in output for secret in (password, CANARY, "cret-canary")), output


def test_a_defect_report_shows_no_password(environment: dict[str, str]) -> None:
    script = f"""
import effectonce.cli, effectonce.cli.options as app
def connect(url, **options): raise RuntimeError("could not use " + url)
app.connect = connect
raise SystemExit(effectonce.cli.main(["check", "--store", "redis://u:{CANARY}@h"]))
"""
    done = subprocess.run(
        [sys.executable, "-"], input=script, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "could not use redis://u:***@h" in done.stderr
    assert "[defect]" in done.stderr
    assert CANARY not in done.stderr


def test_the_password_in_the_environment_is_never_printed(run: Run) -> None:
    done = run("check", EFFECTONCE_STORE=f"redis://u:{CANARY}@127.0.0.1:1")
    assert done.returncode == 1
    assert CANARY not in done.stdout + done.stderr


def test_an_error_names_its_page(inline: Cli) -> None:
    done = inline("check", "--store", "redis://127.0.0.1:1")
    assert done.err.endswith("(effectonce explain store-unavailable)\n")


def test_a_closed_pipe_is_not_a_failure(environment: dict[str, str], tmp_path: Path) -> None:
    """`effectonce … | head`, also where the page is longer than a pipe holds."""
    with eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None) as store:
        for number in range(300):
            with eo.block(store, scope="charge", key=f"pay-{number}-{'x' * 300}") as block:
                assert block.first
    command = f"{sys.executable} -m effectonce records list --store sqlite:///shop.db -n 1000 --json | head -c 10"
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], timeout=60, **options)
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"records"', "")


def test_metrics_without_their_library_say_what_to_install(run: Run, without: Callable[..., str]) -> None:
    hidden = without("prometheus_client")
    done = run("relay", "--store", "sqlite:///shop.db", "--broker", "memory://", "--listen", ":0", PYTHONPATH=hidden)
    assert done.returncode == 2
    assert "pip install 'effectonce[prometheus]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["run", "slow_shop:worker"], ["dlq", "purge", "slow_shop:worker", "orders", "--all"]]
)
def test_ctrl_c_during_an_import_is_130(inline: Cli, tmp_path: Path, arguments: list[str]) -> None:
    """Up to Python 3.11 a class body, as of an enum, turns it into a RuntimeError."""
    (tmp_path / "slow_shop.py").write_text(
        "class Field:\n"
        "    def __set_name__(self, owner, name):\n"
        "        raise KeyboardInterrupt\n"
        "class Order:\n"
        "    field = Field()\n"
    )
    assert inline(*arguments) == (130, "", "")


def test_a_failing_import_of_the_users_module_is_not_a_defect_of_ours(inline: Cli, tmp_path: Path) -> None:
    (tmp_path / "broken_shop.py").write_text('raise RuntimeError("no settings for postgresql://u:c4nary@db/x")\n')
    done = inline("run", "broken_shop:worker")
    assert done.code == 2
    assert "could not be imported: RuntimeError: no settings" in done.err
    assert "c4nary" not in done.err


def test_a_script_that_exits_while_it_is_imported_does_not_end_the_command(inline: Cli, tmp_path: Path) -> None:
    """The exit code 0 would be that of a check that has passed."""
    (tmp_path / "exiting_script.py").write_text("import sys\nsys.exit(0)\n")
    done = inline("run", "exiting_script:worker")
    assert done.code == 2
    assert "exiting_script calls sys.exit() when it is imported; put what it runs under if __name__" in done.err
