"""Who did what to which record, written down before it is done and again when it is."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from effectonce.errors import ConfigurationError, EffectOnceError, show

log = logging.getLogger("effectonce.telemetry.audit_log")

ASKED = "asked"
DONE = "done"
_KEPT = 1000
_BLOCK = 64 * 1024


class AuditEntry(Struct, frozen=True):
    """One line of the audit log. ``target`` names records, messages or sagas, never what is in them."""

    at: int  # µs since the epoch, on this machine's clock
    by: str
    action: str
    target: str
    outcome: str
    detail: str = ""
    place: str = ""  # the store or broker, without secrets: several may share a log, and hold the same keys


class Audit:
    """An append-only log of what people did: JSON lines in the file at ``path``, and always the logger
    ``effectonce.telemetry.audit_log``.

    An entry is one write to a file opened for appending, so that several processes may share it; it is on the disk
    before what it announces is done. Where it cannot be written, that is `ConfigurationError`, and nothing is done.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else os.fspath(path)
        self._here: deque[AuditEntry] = deque(maxlen=_KEPT)

    def record(
        self, action: str, target: str, *, by: str, outcome: str = DONE, detail: str = "", place: str = ""
    ) -> AuditEntry:
        """Write down one entry. Long texts are cut; control characters never get out as such."""
        texts = (show(by, 200), show(action, 100), show(target, 1000), show(outcome, 500), show(detail, 8000))
        where = show(place, 500)
        entry = AuditEntry(time.time_ns() // 1000, *texts, where)
        if self.path is None:
            self._here.append(entry)
        else:
            self._append(self.path, msgspec.json.encode(entry) + b"\n")
        more = f"{f' ({texts[4]})' if texts[4] else ''}{f' in {where}' if where else ''}"
        log.info("%s %s %s: %s%s", *texts[:4], more)
        return entry

    @contextmanager
    def doing(self, action: str, target: str, *, by: str, detail: str = "", place: str = "") -> Iterator[None]:
        """``asked`` before what happens inside, then ``done``, or ``failed: …`` where it raised, which goes on.

        An ``asked`` without another line after it: the process died on the way, or the disk was full by then (which is
        logged, and changes no outcome): look at the target.
        """
        self.record(action, target, by=by, outcome=ASKED, detail=detail, place=place)
        try:
            yield
        except BaseException as error:
            what = f"[{error.code}] {error}" if isinstance(error, EffectOnceError) else type(error).__name__
            self._ended(action, target, by, f"failed: {what}", detail, place)
            raise
        self._ended(action, target, by, DONE, detail, place)

    def _ended(self, action: str, target: str, by: str, outcome: str, detail: str, place: str) -> None:
        try:
            self.record(action, target, by=by, outcome=outcome, detail=detail, place=place)
        except ConfigurationError as error:
            log.error("%s %s: %s, which could not be written down: %s", action, show(target), outcome, error)

    def recent(self, limit: int = 100) -> list[AuditEntry]:
        """The newest entries, newest first: of the file, or of this process where there is none. Lines that cannot be
        read are passed over; a file that cannot be is `ConfigurationError`."""
        if self.path is None:
            return list(self._here)[: -limit - 1 : -1]
        entries: list[AuditEntry] = []
        for line in _last_lines(self.path):
            if len(entries) >= limit:
                break
            try:
                entries.append(msgspec.json.decode(line, type=AuditEntry))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        return entries

    def _append(self, path: str, line: bytes) -> None:
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                if os.write(file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise ConfigurationError(
                f"the audit log {show(path)} cannot be written ({error.strerror}): make it writable, or name another "
                "by --audit or EFFECTONCE_AUDIT; nothing is done that is not written down"
            ) from error


def _last_lines(path: str) -> Iterator[bytes]:
    """The lines of a file from its end, without reading more of it than is asked for."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"the audit log {show(path)} cannot be read ({error.strerror})") from error
    with file:
        at, rest = file.seek(0, os.SEEK_END), b""
        while at:
            size = min(_BLOCK, at)
            at = file.seek(at - size)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            yield from (line for line in reversed(lines) if line)
        if rest:
            yield rest
