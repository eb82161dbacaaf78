"""Which files are checked: those that were named, and those below the folders that were named."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from . import designs
from .config import SKIPPED_FOLDERS, Config
from .findings import LintError
from .python.modules import MAX_FILE_BYTES


def list_files(paths: Sequence[str], config: Config) -> Iterator[str]:
    """The files to check. A file that several paths or links lead to comes once."""
    listed_paths: set[str] = set()
    for argument in paths:
        start = os.path.abspath(argument)
        try:
            mode = os.stat(start).st_mode
        except OSError as error:
            raise LintError(f"cannot check {argument}: {error.strerror}") from None
        if stat.S_ISDIR(mode):
            files: Iterator[str] = _list_folder(start, config)
        elif stat.S_ISREG(mode):
            files = iter((start,))
        else:
            raise LintError(f"cannot check {argument}: neither a file nor a folder")
        for path in files:
            real_path = os.path.realpath(path)
            if real_path not in listed_paths:
                listed_paths.add(real_path)
                yield path


def _list_folder(start: str, config: Config) -> Iterator[str]:
    """The files below ``start``. A link to a file elsewhere is left out: it is not of this tree, and a fix would write
    into it."""
    root = os.path.join(os.path.realpath(start), "")
    for folder, folders, names in os.walk(start):  # which follows no links to folders, so it ends
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED_FOLDERS
            and not name.endswith(".egg-info")
            and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
            and not config.excludes(os.path.join(folder, name))
        )
        for name in sorted(names):
            path = os.path.join(folder, name)
            if is_wanted(path, config) and os.path.isfile(path) and os.path.realpath(path).startswith(root):
                yield path


def is_wanted(path: str, config: Config) -> bool:
    is_wanted_design = designs.is_design if config.designs else designs.may_be_deployment
    is_checked_type = path.endswith(".py") or is_wanted_design(os.path.basename(path))
    return is_checked_type and not config.excludes(path) and not _is_dump(path)


def _is_dump(path: str) -> bool:
    """Whether an SQL file is a dump of a database: it is too large to be written by hand."""
    try:
        return path.lower().endswith(".sql") and os.path.getsize(path) > MAX_FILE_BYTES
    except OSError:
        return False


def import_roots(paths: Sequence[str]) -> tuple[str, ...]:
    """Where imports may begin: the folders that were named, and the current one."""
    folders = [os.path.abspath(path) for path in paths if os.path.isdir(path)]
    return tuple(dict.fromkeys([*folders, os.getcwd()]))
