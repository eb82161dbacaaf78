"""Reads the settings in ``[tool.effectonce.lint]`` of the nearest pyproject.toml."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

import msgspec
from msgspec import Struct

from .findings import LintError
from .rules import RULES

SKIPPED_FOLDERS = (
    ".git",
    ".hg",
    ".svn",
    ".tox",
    ".nox",
    ".venv",
    "venv",
    "env",
    "__pycache__",
    "node_modules",
    "site-packages",
    "build",
    "dist",
    ".eggs",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".effectonce_cache",
    ".terraform",
    ".idea",
    ".vscode",
)
"""Folders that are not entered unless they are named on the command line."""


class Config(Struct, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The settings of `[tool.effectonce.lint]`."""

    select: list[str] = msgspec.field(default_factory=lambda: ["ALL"])
    ignore: list[str] = []
    per_file_ignores: dict[str, list[str]] = {}
    exclude: list[str] = []
    """Patterns of paths that are not checked, beside the folders `SKIPPED_FOLDERS`."""
    consumers: list[str] = []
    """Dotted names of decorators, and of functions that take a handler, that make consumers; and of the methods of base
    classes that handle messages, as `myapp.jobs.Job.run`."""
    effects: list[str] = []
    """Dotted names of functions that must not run twice for a message."""
    guards: list[str] = []
    """Dotted names of decorators, functions and context managers that keep a duplicate out."""
    baseline: str = ""
    cache_dir: str = ".effectonce_cache"
    confidence: float = 0.8
    """Findings that are less sure are left out."""
    designs: bool = False
    """Whether lists of consumers (YAML, JSON), Markdown, Mermaid and SQL files of a folder are checked as well.
    AsyncAPI, Terraform, CloudFormation, Serverless and docker-compose always are."""

    def check(self, where: str) -> None:
        """Raise `LintError` for a rule that does not exist, or a name without its module. ``where`` is where the user
        wrote it."""
        names = [*self.select, *self.ignore, *(rule for rules in self.per_file_ignores.values() for rule in rules)]
        for name in names:
            if name != "ALL" and not any(rule.startswith(name) for rule in RULES):
                raise LintError(f"{where}: there is no rule {name!r}; `effectonce-lint --explain` lists them")
        for name in (*self.consumers, *self.effects, *self.guards):
            if not all(part.isidentifier() for part in name.split(".")) or "." not in name:
                raise LintError(
                    f"{where}: {name!r} is not a dotted name; write it with its module: 'myapp.tasks.{name}'"
                )

    def ignored_in(self, path: str) -> tuple[str, ...]:
        """The rules that `per-file-ignores` turns off for a file."""
        relative = os.path.relpath(path).replace(os.sep, "/")
        return tuple(
            rule
            for pattern, rules in self.per_file_ignores.items()
            if matches_pattern(relative, pattern)
            for rule in rules
        )

    def excludes(self, path: str) -> bool:
        """Whether ``exclude`` means a path."""
        if not self.exclude:
            return False
        relative = os.path.relpath(path).replace(os.sep, "/")
        return any(matches_pattern(relative, pattern) for pattern in self.exclude)


def matches_pattern(path: str, pattern: str) -> bool:
    """Whether a pattern means a path: `tests/*`, `*.generated.py`, a folder's name."""
    pattern = pattern.rstrip("/").removeprefix("./")
    return (
        fnmatch(path, pattern)
        or fnmatch(path, f"*/{pattern}")
        or fnmatch(os.path.basename(path), pattern)
        or path.startswith(f"{pattern}/")
        or f"/{pattern}/" in f"/{path}"
    )


def load_config(paths: Sequence[str], explicit: str = "") -> Config:
    """The settings for ``paths``: of the pyproject.toml ``explicit``, else of the nearest one upward."""
    pyproject = explicit or _nearest_pyproject(paths[0] if paths else ".")
    if not pyproject:
        return Config()
    try:
        with open(pyproject, "rb") as file:
            document: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise LintError(f"cannot read {pyproject}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LintError(f"{pyproject} is not valid TOML: {error}") from None
    tool = document.get("tool", {})
    section = tool.get("effectonce", {}) if isinstance(tool, dict) else {}
    section = section.get("lint", {}) if isinstance(section, dict) else {}
    try:
        config = msgspec.convert(section, Config)
    except msgspec.ValidationError as error:
        raise LintError(f"{pyproject}: [tool.effectonce.lint]: {error}") from None
    config.check(pyproject)
    return config


def _nearest_pyproject(start: str) -> str:
    folder = os.path.abspath(start)
    while True:
        candidate = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(candidate):
            return candidate
        parent = os.path.dirname(folder)
        if parent == folder:
            return ""
        folder = parent
