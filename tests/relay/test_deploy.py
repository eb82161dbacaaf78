"""The examples in deploy/: they parse, and every command in them exists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from effectonce.cli import main

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"


def containers(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("containers", "initContainers"):
                yield from value
            else:
                yield from containers(value)
    elif isinstance(node, list):
        for value in node:
            yield from containers(value)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.name)
def test_its_commands_exist(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = list(yaml.safe_load_all(file.read_text()))
    assert all({"apiVersion", "kind", "metadata", "spec"} <= set(document) for document in documents)
    ours = [each for document in documents for each in containers(document) if each.get("command") == ["effectonce"]]
    assert ours
    for container in ours:
        words = [word for word in container["args"] if not word.startswith("-")]
        depth = 2 if words[0] == "outbox" else 1
        assert main([*words[:depth], "--help"]) == 0
        known = capsys.readouterr().out
        assert [word for word in container["args"] if word.startswith("--") and f"{word} " not in known] == []


def test_the_readme_names_every_file() -> None:
    readme = (FOLDER.parent / "README.md").read_text()
    assert [file.name for file in FOLDER.iterdir() if f"kubernetes/{file.name}" not in readme] == []
