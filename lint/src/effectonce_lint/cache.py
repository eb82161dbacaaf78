"""The results of files, and the cache that keeps them between runs."""

from __future__ import annotations

import os
import sys

import msgspec
from msgspec import Struct

from .config import Config
from .coverage import Handler, Skip
from .findings import Finding, IgnoreComment
from .python.modules import digest


class FileResult(Struct, kw_only=True):
    """The findings of one file, and what they depend on in other files."""

    digest: str
    """Of the content; "" if the result is not to be cached."""
    lines: int = 0
    findings: list[Finding] = []
    handlers: list[Handler] = []
    skipped: list[Skip] = []
    """What was not checked to its end. What could not be checked at all is a finding."""
    ignores: tuple[IgnoreComment, ...] = ()
    used: dict[str, str] = {}
    """The digests of the other files that were followed."""
    lookups: list[tuple[str, str, str]] = []
    """What was looked for: the folder, the name, and the file that it means (see `Project.lookups`)."""
    foreign_ignores: dict[str, tuple[IgnoreComment, ...]] = {}
    """The comments of the other files in which something was found."""


class ResultCache:
    """Keeps the results of earlier runs in one file. A broken cache, or that of another version, counts as empty."""

    def __init__(self, folder: str, config: Config) -> None:
        self._folder = os.path.abspath(folder)
        self._path = os.path.join(self._folder, "lint.msgpack")
        self._version = _checker_version(repr((config.consumers, config.effects, config.guards, config.designs)))

    def load(self) -> dict[str, FileResult]:
        try:
            with open(self._path, "rb") as file:
                version, results = msgspec.msgpack.decode(file.read(), type=tuple[str, dict[str, FileResult]])
        except (OSError, msgspec.MsgspecError, ValueError):
            return {}
        return results if version == self._version else {}

    def save(self, results: dict[str, FileResult]) -> None:
        """Write ``results``, by path. A failure is ignored: it only makes the next run slower."""
        try:
            os.makedirs(self._folder, exist_ok=True)
            marker = os.path.join(self._folder, ".gitignore")
            if not os.path.exists(marker):
                with open(marker, "w", encoding="ascii") as file:
                    file.write("*\n")
            scratch = f"{self._path}.{os.getpid()}"
            with open(scratch, "wb") as file:
                file.write(msgspec.msgpack.encode((self._version, results)))
            os.replace(scratch, self._path)
        except OSError:
            pass


def _checker_version(declared: str) -> str:
    """A digest that is another for each version of the checker, which may find other things, of Python, and of what is
    ``declared``."""
    parts = [sys.version, declared]
    for folder, folders, names in os.walk(os.path.dirname(__file__)):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                status = os.stat(os.path.join(folder, name))
                parts.append(f"{name}{status.st_size}{status.st_mtime_ns}")
    return digest("".join(parts).encode())
