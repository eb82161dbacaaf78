"""`UnfinishedRecords`: the intents and sagas that a recovery has to resume, and the loops that resume them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from effectonce.errors import InvalidOption
from effectonce.record import Page, Record

from .interrupts import remember_signal_handlers
from .run_sync import run_sync

T = TypeVar("T")

MAX_CONCURRENT_RESUMES: Final = 50
"""How many records an event loop resumes at a time: enough for them to share commits."""
_PAGE_SIZE: Final = 100
#: A call with a limit reads at most this many times its limit: records that others run are skipped, but not forever.
_READ_FACTOR: Final = 10


class RecordSource(Protocol):
    """The part of a `Store` that lists records."""

    def now(self) -> int: ...

    def list(self, *, scope: str, unfinished: bool, limit: int, cursor: str | None) -> Page: ...


def never_stop() -> bool:
    """The default of ``stop=``: resume all that there is."""
    return False


class UnfinishedRecords:
    """The unfinished records of one scope.

    `pages` with a limit continues where its last call ended, so that no record waits forever behind others that cannot
    be finished. Several processes may list a record at once; the claim decides which of them resumes it.
    """

    def __init__(self, store: RecordSource, scope: str) -> None:
        self._store = store
        self._scope = scope
        self._cursor: str | None = None

    def pages(self, limit: int | None, idle: int = 0) -> Iterator[list[Record]]:
        """Yield pages of records that hold no lease and have not changed for ``idle`` microseconds, up to ``limit``
        records in all."""
        check_limit(limit)
        return self._all_pages(idle) if limit is None else self._next_pages(limit, idle)

    def _all_pages(self, idle: int) -> Iterator[list[Record]]:
        now = self._store.now()
        for page in list_pages(self._store.list, scope=self._scope, unfinished=True, limit=_PAGE_SIZE):
            yield [record for record in page.records if _is_resumable(record, now, idle)]

    def _next_pages(self, limit: int, idle: int) -> Iterator[list[Record]]:
        now = self._store.now()
        cursor, records_left, read = self._cursor, limit, 0
        while records_left and read < limit * _READ_FACTOR:
            size = min(records_left, _PAGE_SIZE)
            page = self._store.list(scope=self._scope, unfinished=True, limit=size, cursor=cursor)
            resumable = [record for record in page.records if _is_resumable(record, now, idle)]
            yield resumable
            # Only now, when the caller has finished the page: if it stops inside, the next call yields it again.
            self._cursor = cursor = page.cursor
            records_left -= len(resumable)
            read += size
            if cursor is None:
                return


def list_pages(list_page: Callable[..., Page], **query: Any) -> Iterator[Page]:
    """Yield every page that ``list_page``, which is `Store.list`, returns for ``query``."""
    cursor: str | None = None
    while True:
        page = list_page(cursor=cursor, **query)
        cursor = page.cursor
        yield page
        if cursor is None:
            return


def check_limit(limit: int | None) -> None:
    """Raise `InvalidOption` unless ``limit`` is None or at least 1."""
    if limit is not None and limit < 1:
        raise InvalidOption(f"limit={limit!r} is not a number of records to resume; give 1 or more")


def _is_resumable(record: Record, now: int, idle: int) -> bool:
    leased = record.state == "claimed" and (record.lease_until or 0) > now
    return not leased and record.changed_at <= now - idle


def resume_all(
    unfinished: Iterator[T], resume: Callable[[T], Coroutine[Any, Any, str]], stop: Callable[[], bool]
) -> Counter[str]:
    """Resume each of ``unfinished``, until ``stop`` returns True. Counts the outcomes that ``resume`` returns."""
    remember_signal_handlers()
    counts: Counter[str] = Counter()
    for item in unfinished:
        if stop():
            break
        counts[run_sync(resume(item))] += 1
    return counts


async def aresume_all(
    unfinished: Iterator[T], resume: Callable[[T], Coroutine[Any, Any, str]], stop: Callable[[], bool]
) -> Counter[str]:
    """`resume_all` in an event loop: several at a time. ``unfinished`` is read in a thread, since it asks the store."""
    remember_signal_handlers()
    counts: Counter[str] = Counter()

    def read_chunk() -> list[T]:  # named, since the kit names crash points by functions
        return list(islice(unfinished, MAX_CONCURRENT_RESUMES))

    while not stop() and (chunk := await asyncio.to_thread(read_chunk)):
        counts.update(await asyncio.gather(*map(resume, chunk)))
    return counts
