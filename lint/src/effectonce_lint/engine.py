"""Runs the checker: lists the files, takes known results from the cache, and checks the rest in several processes."""

from __future__ import annotations

import gc
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import msgspec
from msgspec import Struct

from . import designs
from .config import SKIPPED, Config
from .findings import Finding, IgnoreComment, LintError, Place
from .python.analysis import check_module, may_consume
from .python.modules import MAX_FILE_BYTES, Module, UnreadableFile, digest, parse
from .python.project import Project
from .rules import RULES, is_selected
from .suppressions import apply_ignores, find_ignores

_MIN_BYTES_FOR_PROCESSES = 600_000
"""Bytes that one process checks in the time that a second one needs to start."""
_BATCH_BYTES = 250_000
_MAX_KEPT_TREES = 300


class FileResult(Struct, kw_only=True):
    """The findings of one file, and the other files that they depend on."""

    digest: str
    lines: int = 0
    findings: list[Finding] = []
    ignores: tuple[IgnoreComment, ...] = ()
    used: dict[str, str] = {}
    """Other files that were followed, by digest."""
    asked: list[tuple[str, str, str]] = []
    """Imports that were looked for: from which folder, what, and which file that was."""
    foreign: dict[str, tuple[IgnoreComment, ...]] = {}
    """Comments of other files in which something was found."""


class Report(Struct, kw_only=True):
    """What a run found."""

    findings: list[Finding] = []
    files: int = 0
    lines: int = 0
    looked_at: int = 0
    """How many of the files were not in the cache."""

    @property
    def unreadable(self) -> bool:
        return any(each.rule == "EO900" for each in self.findings)


def run(paths: Sequence[str], config: Config, *, jobs: int = 0, cache: bool = True, as_found: bool = False) -> Report:
    """Check all files under ``paths``. Raises `LintError` for a path that does not exist.

    A named file is always checked. With ``as_found``, excluded ones are left out, as in a folder.
    """
    files = list(_list_files(paths, config))
    named = frozenset(os.path.abspath(path) for path in paths if not as_found)
    if as_found:
        files = [path for path in files if _is_wanted(path, config)]
    roots = _import_roots(paths)
    store = ResultCache(config.cache_dir) if cache else None
    known = store.load() if store is not None else {}
    project = Project(roots)
    entries: dict[str, FileResult] = {}
    todo: list[tuple[str, int]] = []
    digests: dict[str, str] = {}
    for path in files:
        content = _read_content(path)
        if isinstance(content, FileResult):
            entries[path] = content
            continue
        digests[path] = _cache_digest(content, path in named)
        entry = known.get(path)
        if entry is None or entry.digest != digests[path]:
            todo.append((path, len(content)))
    for path in files:
        entry = known.get(path)
        if entry is not None and path not in entries and entry.digest == digests.get(path):
            if _is_current(entry, digests, project):
                entries[path] = entry
            else:
                todo.append((path, os.path.getsize(path)))
    entries.update(_check_files(todo, roots, named, jobs or os.cpu_count() or 1))
    if store is not None and todo:
        store.save({**known, **{path: entry for path, entry in entries.items() if entry.digest}})
    return _make_report(files, entries, config, len(todo))


def _make_report(files: list[str], entries: dict[str, FileResult], config: Config, looked_at: int) -> Report:
    select, ignore = tuple(config.select), tuple(config.ignore)
    distinct: dict[tuple[object, ...], Finding] = {}
    ignores: dict[str, tuple[IgnoreComment, ...]] = {}
    for path in files:
        entry = entries[path]
        ignores[path] = entry.ignores
        for other, comments in entry.foreign.items():
            ignores.setdefault(other, comments)
        for finding in entry.findings:
            distinct.setdefault((finding.rule, finding.place), finding)
    inside = set(files)
    found = apply_ignores(list(distinct.values()), ignores, select, ignore)
    found = [each for each in found if each.rule != "EO901" or each.place.path in inside]
    findings = [
        each
        for each in found
        if each.rule == "EO900" or is_selected(each.rule, select, (*ignore, *config.ignored_in(each.place.path)))
    ]
    findings.sort(key=lambda each: (*each.place.at, each.rule))
    lines = sum(entries[path].lines for path in files)
    return Report(findings=findings, files=len(files), lines=lines, looked_at=looked_at)


# -- which files


def _list_files(paths: Sequence[str], config: Config) -> Iterator[str]:
    seen: set[str] = set()
    for given in paths:
        start = os.path.abspath(given)
        try:
            mode = os.stat(start).st_mode
        except OSError as error:
            raise LintError(f"cannot check {given}: {error.strerror}") from None
        if stat.S_ISDIR(mode):
            found: Iterator[str] = _list_folder(start, config)
        elif stat.S_ISREG(mode):
            found = iter((start,))
        else:
            raise LintError(f"cannot check {given}: neither a file nor a folder")
        for path in found:
            real = os.path.realpath(path)
            if real not in seen:
                seen.add(real)
                yield path


def _list_folder(start: str, config: Config) -> Iterator[str]:
    for folder, folders, names in os.walk(start):  # does not follow links, so no circle
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED
            and not name.endswith(".egg-info")
            and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
            and not config.excludes(os.path.join(folder, name))
        )
        for name in sorted(names):
            path = os.path.join(folder, name)
            if _is_wanted(path, config) and os.path.isfile(path):
                yield path


def _is_wanted(path: str, config: Config) -> bool:
    kind = path.endswith(".py") or (config.designs and designs.is_design(os.path.basename(path)))
    return kind and not config.excludes(path) and not _is_dump(path)


def _is_dump(path: str) -> bool:
    """Whether an SQL file is the data of a database: too large to be written by hand."""
    try:
        return path.lower().endswith(".sql") and os.path.getsize(path) > MAX_FILE_BYTES
    except OSError:
        return False


def _import_roots(paths: Sequence[str]) -> tuple[str, ...]:
    """Where imports may begin: the folders that were named, and the one we are in."""
    folders = [os.path.abspath(path) for path in paths if os.path.isdir(path)]
    return tuple(dict.fromkeys([*folders, os.getcwd()]))


def _read_content(path: str) -> bytes | FileResult:
    try:
        if os.path.getsize(path) > MAX_FILE_BYTES:
            return _unreadable_result(path, f"larger than {MAX_FILE_BYTES // 1024 // 1024} MiB, so it was not checked")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        return _unreadable_result(path, f"cannot be read: {error.strerror}")


def _unreadable_result(path: str, message: str, line: int = 1, column: int = 1, known: str = "") -> FileResult:
    place = Place(path, line, column, line, column + 1)
    finding = Finding(rule="EO900", severity=RULES["EO900"].severity, place=place, message=message)
    return FileResult(digest=known, findings=[finding])


# -- one file


def _cache_digest(content: bytes, asked_for: bool) -> str:
    """The digest that the cache compares. A file that the user named is checked more strictly, so it has its own."""
    return digest(content) + ("!" if asked_for else "")


def check_file(project: Project, path: str, asked_for: bool) -> FileResult:
    """Check one file. Content that cannot be checked is a finding, never an exception."""
    content = _read_content(path)
    if isinstance(content, FileResult):
        return content
    python = path.endswith((".py", ".pyw", ".pyi")) or not designs.is_design(os.path.basename(path))
    try:
        if python:
            entry = _check_python(project, path, content)
        else:
            project.start_tracking()
            found = designs.check_design(path, content, asked_for=asked_for, others=partial(project.sql_around, path))
            entry = FileResult(digest="", findings=found, used=project.used, asked=_import_lookups(project))
    except UnreadableFile as error:
        entry = _unreadable_result(path, error.message, error.line, error.column)
    except (RecursionError, MemoryError):
        entry = _unreadable_result(path, "nested too deeply to be checked")
    except Exception as error:  # a defect of ours must not hide what is in the other files
        entry = _unreadable_result(
            path, f"the checker failed on it ({type(error).__name__}: {error}); please report this"
        )
    entry.digest = _cache_digest(content, asked_for)
    entry.lines = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
    entry.ignores = find_ignores(content, path)
    return entry


def _check_python(project: Project, path: str, content: bytes) -> FileResult:
    project.start_tracking()
    if not may_consume(content) and not project.receivers(Module(path, content, parse(content))):
        return FileResult(digest="", used=project.used, asked=_import_lookups(project))
    project.forget(_MAX_KEPT_TREES)
    findings = check_module(project, project.add(path, content))
    used = {other: known for other, known in project.used.items() if other != path}
    foreign = {}
    for other in {place for each in findings for place in _paths_of(each)} - {path}:
        module = project.load(other)
        if module is not None:
            foreign[other] = find_ignores(module.content, other)
    return FileResult(digest="", findings=findings, used=used, asked=_import_lookups(project), foreign=foreign)


def _import_lookups(project: Project) -> list[tuple[str, str, str]]:
    return [(folder, dotted, found) for (folder, dotted), found in project.lookups.items()]


def _paths_of(finding: Finding) -> set[str]:
    return {finding.place.path, *(label.place.path for label in finding.labels)}


def _is_current(entry: FileResult, digests: dict[str, str], project: Project) -> bool:
    """Whether the files that a result depends on are unchanged."""
    for path, known in entry.used.items():
        if path not in digests:
            content = _read_content(path)
            digests[path] = "" if isinstance(content, FileResult) else digest(content)
        if digests[path].rstrip("!") != known:
            return False
    return all(project.is_still_resolved(folder, dotted, path) for folder, dotted, path in entry.asked)


# -- many files


_GC_THRESHOLDS = (100_000, 50, 100)
"""Syntax trees are many objects without a circle; looking for circles among them took a third of the time."""


def _check_files(
    todo: list[tuple[str, int]], roots: tuple[str, ...], named: frozenset[str], jobs: int
) -> Iterator[tuple[str, FileResult]]:
    total = sum(size for _, size in todo)
    if jobs < 2 or total < _MIN_BYTES_FOR_PROCESSES:
        project = Project(roots)
        before = gc.get_threshold()
        gc.set_threshold(*_GC_THRESHOLDS)
        try:
            for path, _ in todo:
                yield path, check_file(project, path, path in named)
        finally:
            gc.set_threshold(*before)
        return
    batches: list[list[str]] = [[]]
    size = 0
    for path, length in todo:
        batches[-1].append(path)
        size += length
        if size > _BATCH_BYTES:
            batches.append([])
            size = 0
    # A forked child has all modules loaded; where that is not to be had, a fresh one loads them.
    method = "fork" if sys.platform == "linux" else None
    with ProcessPoolExecutor(
        jobs, mp_context=get_context(method), initializer=_start_worker, initargs=(roots, named)
    ) as pool:
        for result in pool.map(_check_batch, [batch for batch in batches if batch]):
            yield from msgspec.msgpack.decode(result, type=list[tuple[str, FileResult]])


_project: Project | None = None
_named: frozenset[str] = frozenset()


def _start_worker(roots: tuple[str, ...], named: frozenset[str]) -> None:
    global _project, _named
    _project, _named = Project(roots), named
    gc.set_threshold(*_GC_THRESHOLDS)


def _check_batch(paths: list[str]) -> bytes:
    assert _project is not None
    return msgspec.msgpack.encode([(path, check_file(_project, path, path in _named)) for path in paths])


# -- the cache


class ResultCache:
    """Keeps the results of earlier runs in one file. A broken cache, or one of another version, counts as empty."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._path = os.path.join(self._folder, "lint.msgpack")
        self._version = _checker_version()

    def load(self) -> dict[str, FileResult]:
        try:
            with open(self._path, "rb") as file:
                version, entries = msgspec.msgpack.decode(file.read(), type=tuple[str, dict[str, FileResult]])
        except (OSError, msgspec.MsgspecError, ValueError):
            return {}
        return entries if version == self._version else {}

    def save(self, entries: dict[str, FileResult]) -> None:
        """Write ``entries``. A failure is ignored: the next run is slower, nothing else."""
        try:
            os.makedirs(self._folder, exist_ok=True)
            marker = os.path.join(self._folder, ".gitignore")
            if not os.path.exists(marker):
                with open(marker, "w", encoding="ascii") as file:
                    file.write("*\n")
            scratch = f"{self._path}.{os.getpid()}"
            with open(scratch, "wb") as file:
                file.write(msgspec.msgpack.encode((self._version, entries)))
            os.replace(scratch, self._path)
        except OSError:
            pass


def _checker_version() -> str:
    """Identify this version of the checker: another one may find other things."""
    here = os.path.dirname(__file__)
    parts = [sys.version]
    for folder, folders, names in os.walk(here):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                status = os.stat(os.path.join(folder, name))
                parts.append(f"{name}{status.st_size}{status.st_mtime_ns}")
    return digest("".join(parts).encode())
