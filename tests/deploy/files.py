"""What the files in deploy/ hold: their documents, and every command line of ours in them."""

from __future__ import annotations

import configparser
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer
import yaml
from typer.main import get_command

from effectonce.cli.app import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
METRICS_PORT = 9464


class CommandLine(NamedTuple):
    """The words after ``effectonce``, and the file that they stand in."""

    file: str
    words: list[str]


def manifests() -> list[dict[str, Any]]:
    """Every object of every Kubernetes manifest."""
    return [document for file in MANIFESTS for document in yaml.safe_load_all(file.read_text())]


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pod_of(document: dict[str, Any]) -> dict[str, Any] | None:
    """The spec of the Pods that an object makes; None if it makes none."""
    spec = document["spec"]
    if document["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    pod: dict[str, Any] | None = spec["template"]["spec"] if "template" in spec else None
    return pod


def containers_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def our_containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each container that runs effectonce, with its Pod."""
    for document in manifests():
        pod = pod_of(document)
        for container in containers_of(pod) if pod is not None else ():
            if container.get("command") == ["effectonce"]:
                yield pod, container


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return document


def unit(file: Path) -> dict[str, dict[str, list[str]]]:
    """The sections of a systemd unit: the values of each setting, in their order."""
    sections: dict[str, dict[str, list[str]]] = {}

    class Repeating(dict[str, Any]):
        """A setting may stand several times."""

        def __setitem__(self, name: str, value: Any) -> None:
            if isinstance(value, list) and name in self:
                self[name].extend(value)
            else:
                super().__setitem__(name, value)

    parser = configparser.RawConfigParser(dict_type=Repeating, strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(file.read_text())
    for section in parser.sections():
        sections[section] = {name: value.splitlines() for name, value in parser.items(section)}
    return sections


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments; lines that are continued are one."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def command_lines() -> Iterator[CommandLine]:
    """Every command line of ours in deploy/."""
    for _, container in our_containers():
        yield CommandLine("kubernetes", container["args"])
    for name, service in compose()["services"].items():
        if "build" in service and "entrypoint" not in service:
            yield CommandLine(f"compose {name}", service["command"])
    for file in UNITS:
        for command in (
            line for name, lines in unit(file)["Service"].items() if name.startswith("Exec") for line in lines
        ):
            program, *words = shlex.split(command)
            if program.endswith("/effectonce"):
                yield CommandLine(file.name, words)
    for instruction, argument in dockerfile():
        if instruction == "CMD":
            yield CommandLine("Dockerfile", yaml.safe_load(argument))


def parse(words: list[str]) -> dict[str, Any]:
    """Parse the words after ``effectonce`` as the command line does, run nothing, and return the parameters.

    Raises an error of click for a command or an option that does not exist, or a value of another type.
    """
    command: Any = get_command(app)
    rest = list(words)
    context = None
    while hasattr(command, "resolve_command"):
        context = typer.Context(command, parent=context, info_name=command.name)
        _, command, rest = command.resolve_command(context, rest)
    with command.make_context(command.name, rest, parent=context) as parsed:
        parameters: dict[str, Any] = parsed.params
    return parameters
