"""The project's files: which of them an import means, and which belong together without an import."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from effectonce_lint.config import SKIPPED_FOLDERS

from .declarations import Declarations
from .libraries.object_types import LIBRARIES
from .modules import MAX_FILE_BYTES, Binding, Module, UnreadableFile, digest, parse

if TYPE_CHECKING:
    from .values import Value

OUTSIDE_PACKAGES = frozenset(sys.stdlib_module_names) | LIBRARIES | {"builtins"}
"""First names of imports that are never the project's own."""
_MAX_INDEXED_FILES = 4000
"""How many files of a project are searched for derived classes."""
BASES_OF_CLASSES = re.compile(rb"^\s*class \w+\(([^)]+)\)", re.MULTILINE)
"""Finds what stands between the parentheses of each class."""
WORD = re.compile(rb"\w+")
RECEIVE_CALL = re.compile(
    rb"basic_consume|\.consume\(|\.poll\(|\.getone\(|\.getmany\(|receive_message|\.subscribe\(|xread|xautoclaim|brpop|blpop"
    rb"|blmove|next_msg|KafkaConsumer|basic_get|queue_receiver|subscription_receiver|\.pubsub\(|\.iterator\("
)
"""Calls by which code receives messages."""
_SQL_FILES = "*.sql"
"""Stands, among the names in ``lookups``, for the list of SQL files."""
_DERIVING_PREFIX = "<"
"""Begins, among the names in ``lookups``, that of a base class whose derived classes were looked for."""
_ROOT_MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
"""Files of the folder where a project begins."""


def _index_base_classes(root: str) -> dict[str, list[str]]:
    """Every name that a class under ``root`` derives from, with the files of such classes."""
    files_by_base: dict[str, list[str]] = {}
    files = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("."))
        for path in (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py")):
            files += 1
            if files > _MAX_INDEXED_FILES:
                return files_by_base
            content = _read_start(path)
            for name in {name for bases in BASES_OF_CLASSES.findall(content) for name in WORD.findall(bases)}:
                files_by_base.setdefault(name.decode(), []).append(path)
    return files_by_base


def _read_start(path: str) -> bytes:
    """The content of a file, as much of it as is checked; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError:
        return b""


class Project:
    """The files that a check may follow. Tracks which of them it used, so that its result can be cached."""

    def __init__(self, roots: Iterable[str] = (), declared: Declarations | None = None) -> None:
        self.declared = declared or Declarations()
        self.roots = frozenset(roots)
        """The folders that were named on the command line: imports may begin there."""
        self._modules: dict[str, Module | None] = {}
        """The modules by path, the one used last at the end. None: the file cannot be read."""
        self._project_roots: dict[str, str] = {}
        """Where the project of a folder begins."""
        self._imports: dict[tuple[str, str], str] = {}
        """The file that a name means in the files of a folder, by folder and name; "" for none."""
        self._is_file: dict[str, bool] = {}
        self._base_classes: dict[str, dict[str, list[str]]] = {}
        """The files with classes that derive from a name, by project root and name."""
        self._sql_file_lists: dict[str, list[str]] = {}
        """The SQL files below a folder."""
        self._receiving: dict[str, tuple[bool, str]] = {}
        """Whether a file receives messages, and its digest."""
        self._changes: list[tuple[Value, dict[str, Value] | None, tuple[Value, ...]]] = []
        """The values that were changed since `start_tracking`, each with its fields and items before."""
        self.used: dict[str, str] = {}
        """The digests of the files that were used since `start_tracking`."""
        self.lookups: dict[tuple[str, str], str] = {}
        """What was looked for since `start_tracking`, by folder and name, and what that was."""

    def start_tracking(self) -> None:
        """Track from here on what is used. Undo the changes that the check before made to values."""
        self.used = {}
        self.lookups = {}
        for value, fields, items in reversed(self._changes):
            value.fields, value.items = fields, items
        self._changes = []

    def track_change(self, value: Value) -> None:
        """Remember what is in ``value`` before it is changed: other files may use it, so the change is undone later."""
        self._changes.append((value, value.fields, value.items))

    def add(self, path: str, content: bytes) -> Module:
        """The module of a file whose content was read already."""
        module = self._modules.get(path)
        if module is None or module.content != content:
            module = Module(path, content, parse(content))
            self._modules[path] = module
        return module

    def load(self, path: str) -> Module | None:
        """The module at ``path``; None where it cannot be read."""
        # what is used again moves to the end: `forget` takes from the beginning
        module = self._modules.pop(path) if path in self._modules else self._read(path)
        self._modules[path] = module
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
        """Forget what was not used for longest, if there are more than ``keep`` modules: syntax trees are large."""
        for path in list(self._modules)[: max(len(self._modules) - keep, 0)]:
            del self._modules[path]

    def find(self, directory: str, dotted: str) -> str:
        """The file that `import dotted` means in a file of ``directory``, or "" if it is not the project's."""
        if dotted.partition(".")[0] in OUTSIDE_PACKAGES:
            return ""
        key = (directory, dotted)
        if key not in self._imports:
            self._imports[key] = self._search_upward(directory, dotted)
        self.lookups[key] = self._imports[key]
        return self._imports[key]

    def find_relative(self, directory: str, level: int, dotted: str) -> str:
        """The file that `from ..dotted import` means in a file of ``directory``, with ``level`` dots; or ""."""
        for _ in range(level - 1):
            directory = os.path.dirname(directory)
        key = (directory, "." + dotted)
        if key not in self._imports:
            self._imports[key] = self._module_file(directory, dotted)
        self.lookups[key] = self._imports[key]
        return self._imports[key]

    def receives(self, path: str) -> bool:
        """Whether the file at ``path`` holds a loop, or a callback, that messages are received by."""
        if path not in self._receiving:
            content = _read_start(path)
            self._receiving[path] = (RECEIVE_CALL.search(content) is not None, digest(content))
        is_receiving, self.used[path] = self._receiving[path]
        return is_receiving

    def files_deriving_from(self, directory: str, name: str) -> list[str]:
        """The project's files with classes that derive from one called ``name``."""
        root = self._project_root(directory)
        if root not in self._base_classes:
            self._base_classes[root] = _index_base_classes(root)
        paths = self._base_classes[root].get(name, [])
        self.lookups[directory, _DERIVING_PREFIX + name] = os.pathsep.join(paths)
        return paths

    def receivers(self, module: Module) -> frozenset[str]:
        """The names that ``module`` imports from files that receive messages: it may start what receives."""
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
            paths = [self.find_relative(module.directory, binding.level, name) for name in dotted]
        else:
            paths = [self.find(module.directory, name) for name in dotted]
        return [path for path in paths if path and path != module.path]

    def sql_around(self, path: str) -> Iterator[str]:
        """The texts of the SQL files around the one at ``path``: migrations stand side by side, or each in a folder."""
        directory = os.path.dirname(path)
        paths = self._sql_files(directory)
        self.lookups[directory, _SQL_FILES] = digest(os.pathsep.join(paths).encode())
        for other in paths:
            if other != path:
                content = _read_start(other)
                self.used[other] = digest(content)
                yield content.decode("utf-8", "replace")

    def _sql_files(self, directory: str) -> list[str]:
        """The SQL files of the project below the parent of ``directory``."""
        top = directory if directory == self._project_root(directory) else os.path.dirname(directory)
        if top not in self._sql_file_lists:
            paths = self._sql_file_lists[top] = []
            for folder, folders, names in os.walk(top):
                folders[:] = sorted(
                    name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith(".")
                )
                paths += [os.path.join(folder, name) for name in sorted(names) if name.lower().endswith(".sql")]
        return self._sql_file_lists[top]

    def is_still_resolved(self, directory: str, dotted: str, path: str) -> bool:
        """Whether a lookup of an earlier run, for ``dotted`` in ``directory``, still results in ``path``."""
        if dotted == _SQL_FILES:
            return digest(os.pathsep.join(self._sql_files(directory)).encode()) == path
        if dotted.startswith(_DERIVING_PREFIX):
            base = dotted.removeprefix(_DERIVING_PREFIX)
            return os.pathsep.join(self.files_deriving_from(directory, base)) == path
        if dotted.startswith("."):
            return self.find_relative(directory, 1, dotted[1:]) == path
        return self.find(directory, dotted) == path

    def _search_upward(self, directory: str, dotted: str) -> str:
        """The file of a module that begins in ``directory``, in a folder above it, or in ``src`` of the topmost one."""
        root = self._project_root(directory)
        while True:
            if path := self._module_file(directory, dotted):
                return path
            if directory == root or os.path.dirname(directory) == directory:
                break
            directory = os.path.dirname(directory)
        return self._module_file(os.path.join(directory, "src"), dotted)

    def _module_file(self, directory: str, dotted: str) -> str:
        """The file of the module or package ``dotted`` that begins in ``directory``, or ""."""
        stem = os.path.join(directory, *dotted.split(".")) if dotted else directory
        for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            if path not in self._is_file:
                self._is_file[path] = os.path.isfile(path)
            if self._is_file[path]:
                return path
        return ""

    def _project_root(self, directory: str) -> str:
        """Where the project of ``directory`` begins: the next folder up that has a marker, else the topmost package."""
        if directory not in self._project_roots:
            self._project_roots[directory] = self._find_project_root(directory)
        return self._project_roots[directory]

    def _find_project_root(self, directory: str) -> str:
        folder = directory
        while folder not in self.roots and not _has_root_marker(folder):
            parent = os.path.dirname(folder)
            if parent == folder:
                return _topmost_package(directory)
            folder = parent
        return folder


def _has_root_marker(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, marker)) for marker in _ROOT_MARKERS)


def _topmost_package(folder: str) -> str:
    """The folder that holds the package of ``folder``; ``folder`` itself if it is not a package."""
    while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder
