"""Proposes what a project should declare (`--init`): decorators that seem to make consumers, but are not known to."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from . import engine
from .config import Config
from .file_listing import list_files
from .findings import Place
from .output.printable import display_path
from .python.consumer_registrations import place_of
from .python.consumers import ConsumerScanner
from .python.declarations import dotted_name_of
from .python.libraries.frameworks import consumer_of_decorator
from .python.modules import Module, UnreadableFile
from .python.project import OUTSIDE_PACKAGES, Project
from .python.values import Function, Scope, Value

_CONSUMER_NAME = re.compile(
    r"(?:^|_)(?:tasks?|jobs?|actors?|consumers?|consumes?|subscribers?|subscribes?|listeners?|receivers?|workers?"
    r"|(?:event|message|queue)_?handlers?)(?:_|$)"
)
"""Names of decorators that make consumers."""


def propose_declarations(paths: Sequence[str], config: Config) -> str:
    """The settings to begin with, for pyproject.toml, with how often each name is used, and where first."""
    places_by_name: dict[str, list[Place]] = {}
    project = engine.open_project(paths, config)
    for path in list_files(paths, config):
        for name, place in _unrecognized_in(project, path) if path.endswith(".py") else ():
            places_by_name.setdefault(name, []).append(place)
    if not places_by_name:
        return "# Nothing to propose: no decorator seems to make consumers without being known to."
    lines = ["[tool.effectonce.lint]", "consumers = ["]
    for name, places in sorted(places_by_name.items(), key=lambda item: (-len(item[1]), item[0])):
        where = f"{display_path(places[0].path)}:{places[0].line}"
        lines.append(f'    "{name}",  # decorates {len(places)}: {where}')
    return "\n".join([*lines, "]"])


def _unrecognized_in(project: Project, path: str) -> list[tuple[str, Place]]:
    """The names of such decorators in a file, each with the place of the function that it decorates."""
    project.start_tracking()
    project.forget(engine.MAX_KEPT_TREES)
    content = engine.read_content(path)
    if not isinstance(content, bytes):
        return []
    try:
        survey = _DecoratorSurvey(project, project.add(path, content))
    except UnreadableFile:
        return []
    survey.scan()
    return survey.unrecognized


class _DecoratorSurvey(ConsumerScanner):
    """Collects the decorators that made no consumer, and look as if they did."""

    def __init__(self, project: Project, module: Module) -> None:
        super().__init__(project, module)
        self.unrecognized: list[tuple[str, Place]] = []

    def visit_unrecognized(self, function: Function, decorator: ast.expr) -> None:
        with self.mute_trace():
            target = self.value(decorator.func if isinstance(decorator, ast.Call) else decorator)
        name = dotted_name_of(target)
        if not name or target.tag or name.partition(".")[0] in OUTSIDE_PACKAGES:
            return
        if _CONSUMER_NAME.search(name.rpartition(".")[2]) or self._wraps_known(target):
            self.unrecognized.append((name, place_of(function)))

    def _wraps_known(self, decorator: Value) -> bool:
        """Whether the code of a decorator uses one that is known to make consumers."""
        if decorator.function is None:
            return False
        parts = [part for part in ast.walk(decorator.function.node) if isinstance(part, ast.Name | ast.Attribute)]
        with self.mute_trace(), self.in_scope(Scope(decorator.function.module)):
            return any(consumer_of_decorator(self.value(part), set())[0] for part in parts)
