"""The project's files: which of them an import means, and which bear on one another without one."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from effectonce_lint.config import SKIPPED

from .libraries.object_types import LIBRARIES
from .modules import MAX_FILE_BYTES, Binding, Module, UnreadableFile, digest, parse

if TYPE_CHECKING:
    from .values import Value

OUTSIDE = frozenset(sys.stdlib_module_names) | LIBRARIES | {"builtins"}
"""First names of imports that are never the project's own."""
_MAX_FILES = 4000
"""Files of a project among which classes are looked for that derive from an abstract one."""
_BASES = re.compile(rb"^\s*class \w+\(([^)]+)\)", re.MULTILINE)
_WORD = re.compile(rb"\w+")
RECEIVES = re.compile(
    rb"basic_consume|\.consume\(|\.poll\(|\.getone\(|\.getmany\(|receive_message|\.subscribe\(|xread|xautoclaim|brpop|blpop"
    rb"|blmove|next_msg|KafkaConsumer|basic_get|queue_receiver|subscription_receiver|\.pubsub\(|\.iterator\("
)
"""What every receiving of messages comes down to."""
_SQL_FILES = "*.sql"
"""What is asked for when all of those are."""
_MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


def _index_base_classes(root: str) -> dict[str, list[str]]:
    """Every name that a class under ``root`` derives from, with the files in which one does."""
    out: dict[str, list[str]] = {}
    files = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        for path in (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py")):
            files += 1
            if files > _MAX_FILES:
                return out
            try:
                with open(path, "rb") as file:
                    content = file.read(MAX_FILE_BYTES)
            except OSError:
                continue
            for name in {name for bases in _BASES.findall(content) for name in _WORD.findall(bases)}:
                out.setdefault(name.decode(), []).append(path)
    return out


class Project:
    """The files that may be followed, and those that were: with their digests, so that a result can be kept."""

    def __init__(self, roots: Iterable[str] = ()) -> None:
        self._tops = frozenset(roots)
        self._modules: dict[str, Module | None] = {}
        self._roots: dict[str, str] = {}
        self._found: dict[tuple[str, str], str] = {}
        self._files: dict[str, bool] = {}
        self._bases: dict[str, dict[str, list[str]]] = {}
        self._tables: dict[str, list[str]] = {}
        self._receiving: dict[str, tuple[bool, str]] = {}
        self._changed: list[tuple[Value, dict[str, Value] | None, tuple[Value, ...]]] = []
        self.used: dict[str, str] = {}
        self.asked: dict[tuple[str, str], str] = {}

    def start_tracking(self) -> None:
        """From here on, note what is used. Tables of handlers are again as their own files make them."""
        self.used = {}
        self.asked = {}
        for value, fields, items in reversed(self._changed):
            value.fields, value.items = fields, items
        self._changed = []

    def track_change(self, value: Value) -> None:
        """Something is put into ``value``, which may be there for other files as well: take it out in the end."""
        self._changed.append((value, value.fields, value.items))

    def add(self, path: str, content: bytes) -> Module:
        """The module of a file that was read already."""
        module = self._modules.get(path)
        if module is None or module.content != content:
            module = Module(path, content, parse(content))
            self._modules[path] = module
        return module

    def load(self, path: str) -> Module | None:
        """The module at ``path``; None where it cannot be read."""
        if path not in self._modules:
            self._modules[path] = self._read(path)
        module = self._modules[path]
        self.used[path] = module.digest if module else ""
        return module

    @staticmethod
    def _read(path: str) -> Module | None:
        try:
            if os.path.getsize(path) > MAX_FILE_BYTES:
                return None
            with open(path, "rb") as file:
                content = file.read()
            return Module(path, content, parse(content))
        except (OSError, UnreadableFile):
            return None

    def forget(self, keep: int) -> None:
        """Let go of syntax trees, the oldest first: they are large."""
        if len(self._modules) > keep:
            for path in list(self._modules)[: -keep // 2]:
                del self._modules[path]

    def find(self, directory: str, dotted: str) -> str:
        """The file that an import of ``dotted`` means in a file of ``directory``; "" where it is not the project's."""
        if dotted.partition(".")[0] in OUTSIDE:
            return ""
        key = (directory, dotted)
        if key not in self._found:
            self._found[key] = self._search_upward(directory, dotted)
        self.asked[key] = self._found[key]
        return self._found[key]

    def find_relative(self, directory: str, level: int, dotted: str) -> str:
        """The same for ``from ..dotted import``."""
        for _ in range(level - 1):
            directory = os.path.dirname(directory)
        key = (directory, "." + dotted)
        if key not in self._found:
            self._found[key] = self._module_file(directory, dotted)
        self.asked[key] = self._found[key]
        return self._found[key]

    def receives(self, path: str) -> bool:
        """Whether the file at ``path`` holds a loop, or a callback, that messages are received by."""
        if path not in self._receiving:
            try:
                with open(path, "rb") as file:
                    content = file.read(MAX_FILE_BYTES)
            except OSError:
                content = b""
            self._receiving[path] = (RECEIVES.search(content) is not None, digest(content))
        found, self.used[path] = self._receiving[path]
        return found

    def files_deriving_from(self, directory: str, name: str) -> list[str]:
        """The project's files with classes that derive from one called ``name``."""
        root = self._root(directory)
        if root not in self._bases:
            self._bases[root] = _index_base_classes(root)
        found = self._bases[root].get(name, [])
        self.asked[directory, f"<{name}"] = os.pathsep.join(found)
        return found

    def receivers(self, module: Module) -> frozenset[str]:
        """The names by which ``module`` imports, from files that receive messages, what may be started in it."""
        return frozenset(
            name for name, binding in module.imports if any(map(self.receives, self.sources(module, binding)))
        )

    def sources(self, module: Module, binding: Binding) -> list[str]:
        """The files of the project that an import may mean."""
        if isinstance(binding.node, ast.Import):
            dotted = [alias.name for alias in binding.node.names]
        else:
            dotted = [binding.source, f"{binding.source}.{binding.name}".lstrip(".")]
        if binding.level:
            found = [self.find_relative(module.directory, binding.level, each) for each in dotted]
        else:
            found = [self.find(module.directory, each) for each in dotted]
        return [path for path in found if path and path != module.path]

    def sql_around(self, path: str) -> Iterator[str]:
        """The texts of the SQL files around the one at ``path``: migrations stand side by side, or each in a folder."""
        directory = os.path.dirname(path)
        found = self._sql_files(directory)
        self.asked[directory, _SQL_FILES] = digest(os.pathsep.join(found).encode())
        for other in found:
            if other != path:
                try:
                    with open(other, "rb") as file:
                        content = file.read(MAX_FILE_BYTES)
                except OSError:
                    content = b""
                self.used[other] = digest(content)
                yield content.decode("utf-8", "replace")

    def _sql_files(self, directory: str) -> list[str]:
        above = directory if directory == self._root(directory) else os.path.dirname(directory)
        if above not in self._tables:
            self._tables[above] = []
            for folder, folders, names in os.walk(above):
                folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
                self._tables[above] += [
                    os.path.join(folder, name) for name in sorted(names) if name.lower().endswith(".sql")
                ]
        return self._tables[above]

    def is_still_resolved(self, directory: str, dotted: str, path: str) -> bool:
        """Whether an import that once meant ``path`` means it still."""
        if dotted == _SQL_FILES:
            return digest(os.pathsep.join(self._sql_files(directory)).encode()) == path
        if dotted.startswith("<"):
            return os.pathsep.join(self.files_deriving_from(directory, dotted[1:])) == path
        if dotted.startswith("."):
            return self.find_relative(directory, 1, dotted[1:]) == path
        return self.find(directory, dotted) == path

    def _search_upward(self, directory: str, dotted: str) -> str:
        root = self._root(directory)
        while True:
            if found := self._module_file(directory, dotted):
                return found
            if directory == root or os.path.dirname(directory) == directory:
                break
            directory = os.path.dirname(directory)
        return self._module_file(os.path.join(directory, "src"), dotted)

    def _module_file(self, directory: str, dotted: str) -> str:
        stem = os.path.join(directory, *dotted.split(".")) if dotted else directory
        for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            if path not in self._files:
                self._files[path] = os.path.isfile(path)
            if self._files[path]:
                return path
        return ""

    def _root(self, directory: str) -> str:
        """Where the project of ``directory`` begins: the next folder up that says so, else the topmost package."""
        if directory not in self._roots:
            at = directory
            while at not in self._tops and not any(os.path.exists(os.path.join(at, marker)) for marker in _MARKERS):
                above = os.path.dirname(at)
                if above == at:
                    at = directory
                    while os.path.isfile(os.path.join(at, "__init__.py")) and os.path.dirname(at) != at:
                        at = os.path.dirname(at)
                    break
                at = above
            self._roots[directory] = at
        return self._roots[directory]
