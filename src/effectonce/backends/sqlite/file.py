"""A SQLite file: its path and options, read from a URL; opening it; and the translation of its errors to ours."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import Final
from urllib.parse import quote

from effectonce.contracts import ConnectionLost
from effectonce.core.sql_files import table_prefix
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    EffectOnceError,
    InvalidOption,
    SchemaMissing,
    StoreUnavailable,
    show,
)
from effectonce.values.urls import Address, one_of

OLDEST_SQLITE: Final = (3, 35, 0)  # RETURNING
SYNCHRONOUS_LEVELS: Final = ("FULL", "NORMAL", "EXTRA")
WAL_CHECKPOINT_PAGES: Final = 4000
_PRIMARY_CODE_MASK: Final = 0xFF  # an extended error code has the primary one in its lowest byte


class SQLiteFile:
    """A database file and how to open it, from ``sqlite:///relative.db`` or ``sqlite:////absolute/path.db``."""

    def __init__(self, address: Address) -> None:
        path = address.path[1:]
        if address.netloc:
            raise InvalidOption(
                f"{address} names a host; write sqlite:///{address.netloc} for a relative path, sqlite:////… for an "
                "absolute one"
            )
        if path in ("", ":memory:"):
            raise InvalidOption(f"{address} names no file; write sqlite:///file.db, or memory:// for a store in memory")
        if "\0" in path:
            raise InvalidOption("a path cannot contain a zero byte")
        # Made absolute, so that a later change of the working directory does not change the store.
        self.path = os.path.abspath(path)
        self.synchronous = address.take("synchronous", lambda text: one_of(*SYNCHRONOUS_LEVELS)(text.upper()), "FULL")
        self.timeout = address.seconds("timeout", 5.0)
        self._shown = str(address)
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise ConfigurationError(
                f"this Python is built with SQLite {sqlite3.sqlite_version}; effectonce needs "
                f"{'.'.join(map(str, OLDEST_SQLITE))} or newer: use a newer Python build"
            )

    def open(self) -> sqlite3.Connection:
        """Open a new connection in WAL mode and autocommit, without a busy timeout: see `SQLiteConnection`."""
        opened = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            (mode,) = opened.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                (mode,) = opened.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise ConfigurationError(
                    f"{self} cannot use a write-ahead log (its journal mode stays {mode!r}); put it on a local disk"
                )
            opened.execute(f"PRAGMA synchronous = {self.synchronous}")
            # 16 MB of log, four times SQLite's default, since random keys make each checkpoint write many pages.
            # Measured at synchronous=NORMAL: 5 to 12 % less CPU per claim + completion.
            opened.execute(f"PRAGMA wal_autocheckpoint = {WAL_CHECKPOINT_PAGES}")
        except BaseException:
            opened.close()
            raise
        return opened

    def identify(self) -> tuple[int, int] | None:
        """Identify the file that is at the path now, whatever was there before; None: there is none."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def lacks(self, table: str) -> bool:
        """Whether the table or the whole file is missing. Unlike `open`, this creates nothing."""
        if not os.path.exists(self.path):
            return True
        try:
            with closing(sqlite3.connect(f"file:{quote(self.path)}?mode=ro", uri=True)) as opened:
                row = opened.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        except sqlite3.Error:  # `open` will raise the cause
            return False
        return row is None

    def translate(self, error: sqlite3.Error) -> EffectOnceError:
        """Return our error for ``error``, with the remedy."""
        extended_code: int = getattr(error, "sqlite_errorcode", 0)
        code = extended_code & _PRIMARY_CODE_MASK
        if code == sqlite3.SQLITE_CANTOPEN:
            folder = os.path.dirname(self.path)
            why = "is there and may be written" if os.path.isdir(folder) else "exists (it does not)"
            return ConfigurationError(f"{self} cannot be opened; make sure that the folder {show(folder)} {why}")
        if code == sqlite3.SQLITE_NOTADB:
            return ConfigurationError(f"{self} is not a SQLite database (or is encrypted); name another file")
        if extended_code == sqlite3.SQLITE_READONLY_DBMOVED:
            return ConnectionLost(f"{self} was moved or deleted while it was open; the next call opens the path again")
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return ConfigurationError(
                f"{self} may only be read; give this user write access to the file and to its folder"
            )
        if code == sqlite3.SQLITE_FULL:
            return StoreUnavailable(f"the disk of {self} is full; nothing was recorded: make room")
        if code == sqlite3.SQLITE_CORRUPT:
            return StoreUnavailable(
                f"{self} is damaged ({error}); restore a backup, or rescue it with the .recover command of sqlite3"
            )
        if code == sqlite3.SQLITE_IOERR:
            return ConnectionLost(f"{self} could not be read or written ({error}); check its disk")
        if "no such table" in str(error) or "no such column" in str(error):
            return SchemaMissing(f"{self} lacks a table or a column ({error}); run: effectonce migrate --store {self}")
        if code == 0 and "decode" in str(error):
            return CorruptRecord(f"{self} holds a text that is not UTF-8, written by another program: {show(error)}")
        return StoreUnavailable(f"{self}: {show(error)}")

    def __str__(self) -> str:
        return self._shown


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock that the statement needed."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE_MASK in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def parse_prefix(text: str) -> str:
    """Check a prefix for table names, from a URL's options, and return it."""
    if f"{text}_".lower().startswith("sqlite_"):
        raise InvalidOption("SQLite reserves names that begin with sqlite_; choose another prefix")
    return table_prefix(text)
