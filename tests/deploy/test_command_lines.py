"""Every command line in deploy/ is one that our command line accepts."""

from __future__ import annotations

import re

import pytest

from effectonce.telemetry.endpoints import parse_address

from .files import DEPLOY, METRICS_PORT, CommandLine, command_lines, parse

LINES = list(command_lines())


def test_every_kind_of_file_has_some() -> None:
    assert {line.file.partition(" ")[0].rpartition(".")[2] for line in LINES} == {
        "kubernetes", "compose", "service", "Dockerfile",
    }  # fmt: skip
    assert {line.words[0] for line in LINES} == {"run", "relay", "migrate", "outbox"}


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.file}: {' '.join(line.words[:2])}")
def test_it_is_parsed(line: CommandLine) -> None:
    parameters = parse(line.words)
    if line.words[0] in ("run", "relay"):
        _, port = parse_address(parameters["listen"])
        assert port in (METRICS_PORT, METRICS_PORT + 1)


@pytest.mark.parametrize(
    "words",
    [
        ["relay", "--orders", "key"],
        ["rely"],
        ["relay", "--batch", "many"],
        ["run"],
        ["outbox", "stat"],
        ["migrate", "a", "b"],
    ],
    ids=" ".join,
)
def test_a_command_line_that_does_not_exist_is_noticed(words: list[str]) -> None:
    with pytest.raises(Exception) as raised:
        parse(words)
    assert re.match(r"No such|Invalid value|Missing argument|Got unexpected", raised.value.format_message())


def test_the_readme_names_every_file() -> None:
    readme = (DEPLOY / "README.md").read_text()
    files = [
        file.relative_to(DEPLOY) for file in DEPLOY.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    ]
    assert [str(file) for file in files if f"({file})" not in readme and file.name != "README.md"] == []
