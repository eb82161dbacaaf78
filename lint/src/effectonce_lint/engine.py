"""Runs the checker: lists the files, takes results from the cache, and checks the other files in several processes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import msgspec
from msgspec import Struct

from . import designs
from .cache import FileResult, ResultCache
from .config import Config
from .coverage import Coverage, Handler, Skip, checker_failure, measure_coverage, unreadable
from .designs.checks import check as check_design
from .designs.model import Design
from .file_listing import import_roots, is_wanted, list_files
from .findings import Finding, IgnoreComment, Place
from .python.analysis import check_module
from .python.consumer_signs import has_signs, leads_to_signs
from .python.declarations import Declarations
from .python.modules import MAX_FILE_BYTES, UnreadableFile, digest
from .python.project import Project
from .rules import is_selected
from .suppressions import apply_ignores, find_ignores

_MIN_BYTES_FOR_PROCESSES = 600_000
"""One process checks as many bytes in the time that a second one needs to start."""
_BATCH_BYTES = 250_000
"""How many bytes a process is given at a time."""
MAX_KEPT_TREES = 300
"""How many syntax trees a process keeps: other files may import those modules."""
_NAMED_SUFFIX = "!"
"""Ends the cached digest of a file that the user named: it is checked more strictly than as part of a folder."""


class LintReport(Struct, kw_only=True):
    """The findings of a run."""

    findings: list[Finding] = []
    hidden: int = 0
    """How many findings were left out because they are less sure than is asked for."""
    files: int = 0
    lines: int = 0
    looked_at: int = 0
    """How many of the files were not in the cache."""
    coverage: Coverage = msgspec.field(default_factory=Coverage)

    @property
    def is_notable(self) -> bool:
        """Whether anything was found or skipped."""
        return bool(self.findings or self.coverage.skipped)

    @property
    def has_unreadable_files(self) -> bool:
        """Whether a file could not be checked."""
        return any(finding.rule == "EO900" for finding in self.findings)


def run(
    paths: Sequence[str], config: Config, *, jobs: int = 0, cache: bool = True, as_found: bool = False
) -> LintReport:
    """Check all files under ``paths``. Raises `LintError` for a path that does not exist.

    A file that is named is checked even if it is excluded; with ``as_found``, it is not.
    """
    files = list(list_files(paths, config))
    named = frozenset(os.path.abspath(path) for path in paths if not as_found)
    if as_found:
        files = [path for path in files if is_wanted(path, config)]
    result_cache = ResultCache(config.cache_dir, config) if cache else None
    cached = result_cache.load() if result_cache is not None else {}
    project = open_project(paths, config)
    results, todo = _take_from_cache(files, named, cached, project)
    scope = _Scope(named, lists=config.designs)
    results.update(_check_files(todo, project, scope, jobs or os.cpu_count() or 1))
    if result_cache is not None and todo:
        result_cache.save({**cached, **{path: result for path, result in results.items() if result.digest}})
    return _make_report(files, results, config, len(todo))


def _take_from_cache(
    files: Sequence[str], named: frozenset[str], cached: dict[str, FileResult], project: Project
) -> tuple[dict[str, FileResult], list[tuple[str, int]]]:
    """The results that are still right, by path, and the files that have to be checked, each with its size.

    First every file is read, for its digest: a result also depends on other files, of which most are among these.
    """
    results: dict[str, FileResult] = {}
    sizes: dict[str, int] = {}
    digests: dict[str, str] = {}
    for path in files:
        content = read_content(path)
        if isinstance(content, FileResult):  # it cannot be read
            results[path] = content
        else:
            digests[path], sizes[path] = _cache_digest(content, is_named=path in named), len(content)
    todo: list[tuple[str, int]] = []
    for path, size in sizes.items():
        result = cached.get(path)
        if result is not None and result.digest == digests[path] and _is_current(result, digests, project):
            results[path] = result
        else:
            todo.append((path, size))
    return results, todo


def run_on_text(path: str, content: bytes, config: Config) -> LintReport:
    """Check ``content`` as if it were the file at ``path``: an editor has not saved it yet."""
    path = os.path.abspath(path)
    project = open_project([os.path.dirname(path)], config)
    result = check_content(project, path, content, is_named=True, lists=config.designs)
    return _make_report([path], {path: result}, config, 1)


def open_project(paths: Sequence[str], config: Config) -> Project:
    """The project that ``paths`` are checked in, with what its settings declare."""
    declared = Declarations(tuple(config.consumers), tuple(config.effects), tuple(config.guards))
    return Project(import_roots(paths), declared)


def _make_report(files: list[str], results: dict[str, FileResult], config: Config, looked_at: int) -> LintReport:
    select, ignore = tuple(config.select), tuple(config.ignore)
    distinct: dict[tuple[str, Place], Finding] = {}
    ignores: dict[str, tuple[IgnoreComment, ...]] = {}
    for path in files:
        result = results[path]
        ignores[path] = result.ignores
        for other, comments in result.foreign_ignores.items():
            ignores.setdefault(other, comments)
        for finding in result.findings:
            distinct.setdefault((finding.rule, finding.place), finding)
    checked = set(files)
    findings, hidden = [], 0
    for finding in apply_ignores(list(distinct.values()), ignores, select, ignore):
        path = finding.place.path
        if finding.rule == "EO901" and path not in checked:
            continue  # the comment may hide what is found when its own file is checked
        if finding.rule == "EO900" or is_selected(finding.rule, select, (*ignore, *config.ignored_in(path))):
            if is_shown(finding, config):
                findings.append(finding)
            else:
                hidden += 1
    findings.sort(key=lambda finding: (*finding.place.start, finding.rule))
    lines = sum(results[path].lines for path in files)
    coverage = measure_coverage(
        len(files),
        (handler for path in files for handler in results[path].handlers),
        [
            *(skip for path in files for skip in results[path].skipped),
            *map(_skip_of, filter(_is_unreadable, distinct.values())),
        ],
    )
    return LintReport(
        findings=findings, hidden=hidden, files=len(files), lines=lines, looked_at=looked_at, coverage=coverage
    )


def is_shown(finding: Finding, config: Config) -> bool:
    """Whether a finding is sure enough to be shown."""
    return finding.confidence >= config.confidence


def _is_unreadable(finding: Finding) -> bool:
    return finding.rule == "EO900"


def _skip_of(finding: Finding) -> Skip:
    return Skip(subject=finding.symbol or "the file", reason=finding.message, place=finding.place)


# -- one file


def read_content(path: str) -> bytes | FileResult:
    """The content of a file, or the result that says why it cannot be checked."""
    try:
        if os.path.getsize(path) > MAX_FILE_BYTES:
            return _unreadable_result(path, f"larger than {MAX_FILE_BYTES // 1024 // 1024} MiB, so it was not checked")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        return _unreadable_result(path, f"cannot be read: {error.strerror}")


def _unreadable_result(path: str, message: str, line: int = 1, column: int = 1) -> FileResult:
    place = Place(path, line, column, line, column + 1)
    return FileResult(digest="", findings=[unreadable("", place, message)])


def _cache_digest(content: bytes, *, is_named: bool) -> str:
    """The digest that the cache compares."""
    return digest(content) + (_NAMED_SUFFIX if is_named else "")


def check_file(project: Project, path: str, *, is_named: bool, lists: bool = False) -> FileResult:
    """Check one file. One that cannot be checked is a finding, never an exception.

    With ``lists``, lists of consumers in YAML and JSON count as designs, also in a file that was not named.
    """
    content = read_content(path)
    if isinstance(content, FileResult):
        return content
    return check_content(project, path, content, is_named=is_named, lists=lists)


def check_content(project: Project, path: str, content: bytes, *, is_named: bool, lists: bool) -> FileResult:
    """Check the content of one file."""
    python = path.endswith((".py", ".pyw", ".pyi")) or not designs.is_design(os.path.basename(path))
    try:
        if python:
            result = _check_python(project, path, content)
        else:
            project.start_tracking()
            result = _check_design(project, path, content, is_named=is_named, lists=lists)
    except UnreadableFile as error:
        result = _unreadable_result(path, error.message, error.line, error.column)
    except (RecursionError, MemoryError):
        result = _unreadable_result(path, "nested too deeply to be checked")
    except Exception as error:  # a defect of the checker must not hide what is in the other files
        result = FileResult(digest="", findings=[checker_failure("the file", Place(path, 1, 1, 1, 2), error)])
    result.digest = _cache_digest(content, is_named=is_named)
    result.lines = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
    result.ignores = find_ignores(content, path)
    return result


def _check_python(project: Project, path: str, content: bytes) -> FileResult:
    project.start_tracking()
    project.forget(MAX_KEPT_TREES)
    if not has_signs(project, content):
        parsed = project.add(path, content)
        if not project.receivers(parsed) and not leads_to_signs(project, parsed):
            return FileResult(digest="", used=project.used, lookups=_lookups_of(project))
    checked = check_module(project, project.add(path, content))
    used = {other: other_digest for other, other_digest in project.used.items() if other != path}
    foreign_ignores = {}
    for other in {label_path for finding in checked.findings for label_path in _paths_of(finding)} - {path}:
        module = project.load(other)
        if module is not None:
            foreign_ignores[other] = find_ignores(module.content, other)
    return FileResult(
        digest="",
        findings=checked.findings,
        handlers=checked.handlers,
        skipped=checked.skipped,
        used=used,
        lookups=_lookups_of(project),
        foreign_ignores=foreign_ignores,
    )


def _check_design(project: Project, path: str, content: bytes, *, is_named: bool, lists: bool) -> FileResult:
    project.start_tracking()
    others = partial(project.sql_around, path)
    design = designs.read_design(path, content, asked_for=is_named, lists=lists, others=others)
    nothing_recognised = Skip(subject="the file", reason="nothing recognised in it", place=Place(path, 1))
    return FileResult(
        digest="",
        findings=check_design(design),
        handlers=[
            Handler(subject=f"consumer `{consumer.name}`", framework="design", place=consumer.at)
            for consumer in design.consumers
        ],
        skipped=[nothing_recognised] if is_named and design == Design() else [],
        used=project.used,
        lookups=_lookups_of(project),
    )


def _lookups_of(project: Project) -> list[tuple[str, str, str]]:
    return [(folder, name, path) for (folder, name), path in project.lookups.items()]


def _paths_of(finding: Finding) -> set[str]:
    return {finding.place.path, *(label.place.path for label in finding.labels)}


def _is_current(result: FileResult, digests: dict[str, str], project: Project) -> bool:
    """Whether the files that a result depends on are unchanged."""
    for path, digest_then in result.used.items():
        if path not in digests:
            content = read_content(path)
            digests[path] = "" if isinstance(content, FileResult) else digest(content)
        if digests[path].removesuffix(_NAMED_SUFFIX) != digest_then:
            return False
    return all(project.is_still_resolved(folder, name, path) for folder, name, path in result.lookups)


# -- many files


_GC_THRESHOLDS = (100_000, 50, 100)
"""Syntax trees are many objects without a reference cycle: with Python's own thresholds, a third of the time went into
looking for cycles."""


class _Scope(Struct, frozen=True):
    """What a run was asked to check."""

    named: frozenset[str] = frozenset()
    """The files that the user named."""
    lists: bool = False
    """Whether lists of consumers in YAML and JSON count as designs."""

    def check(self, project: Project, path: str) -> FileResult:
        return check_file(project, path, is_named=path in self.named, lists=self.lists)


def _check_files(
    todo: list[tuple[str, int]], project: Project, scope: _Scope, jobs: int
) -> Iterator[tuple[str, FileResult]]:
    total = sum(size for _, size in todo)
    if jobs < 2 or total < _MIN_BYTES_FOR_PROCESSES:
        thresholds = gc.get_threshold()
        gc.set_threshold(*_GC_THRESHOLDS)
        try:
            for path, _ in todo:
                yield path, scope.check(project, path)
        finally:
            gc.set_threshold(*thresholds)
        return
    batches: list[list[str]] = [[]]
    size = 0
    for path, length in todo:
        batches[-1].append(path)
        size += length
        if size > _BATCH_BYTES:
            batches.append([])
            size = 0
    # A forked process has all modules loaded; elsewhere a fresh one loads them.
    method = "fork" if sys.platform == "linux" else None
    with ProcessPoolExecutor(
        jobs,
        mp_context=get_context(method),
        initializer=_start_worker,
        initargs=(project.roots, project.declared, scope),
    ) as pool:
        for result in pool.map(_check_batch, [batch for batch in batches if batch]):
            yield from msgspec.msgpack.decode(result, type=list[tuple[str, FileResult]])


_project: Project | None = None
_scope = _Scope()


def _start_worker(roots: frozenset[str], declared: Declarations, scope: _Scope) -> None:
    global _project, _scope
    _project, _scope = Project(roots, declared), scope
    gc.set_threshold(*_GC_THRESHOLDS)


def _check_batch(paths: list[str]) -> bytes:
    assert _project is not None
    return msgspec.msgpack.encode([(path, _scope.check(_project, path)) for path in paths])
