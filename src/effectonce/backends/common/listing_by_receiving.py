"""Listing dead letters on a broker that has no way to look at messages, other than to receive them.

Such a broker shows a message only to the consumer that receives it. So a listing hides dead letters from other
listings: until its last page, or `close`, or for `LISTING_TIMEOUT_S` at most. Of two listings at the same time, each
sees a part.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from effectonce.contracts import DeadLetter, DeadLetters

#: How long a listing hides dead letters from others.
LISTING_TIMEOUT_S: Final = 60
#: The cursor of every page but the first. The object itself remembers what it has shown.
NEXT_PAGE: Final = "more"


class ListedDeadLetter(Struct, eq=False):
    """A dead letter that this listing has received, and hides from others."""

    dead_letter: DeadLetter
    receipt: str  # by which the broker knows this delivery
    sent_at: float  # in seconds since 1970
    hidden_until: float  # on the monotonic clock; 0: it is shown to others again


class ReceivedDeadLetters(DeadLetters):
    """See `contracts.DeadLetters`. A subclass receives, deletes and releases.

    Where another listing has received a dead letter meanwhile, it may stay, although `remove` has counted it.
    ``batch`` is how many messages one call to the broker returns at most: pages are oldest first within such a batch.
    ``receipts_last``: a receipt is good for `remove` after the listing has shown its dead letter to others again.
    """

    def __init__(self, batch: int, *, receipts_last: bool) -> None:
        self._batch = batch
        self._receipts_last = receipts_last
        self._received: dict[str, ListedDeadLetter] = {}  # by id
        self._shown: set[str] = set()
        self._unshown: list[ListedDeadLetter] = []  # received, and on no page yet

    @abstractmethod
    async def _receive_batch(self) -> Sequence[ListedDeadLetter]:
        """Receive a batch of dead letters, and hide them for `LISTING_TIMEOUT_S`; none where there are no more."""

    @abstractmethod
    async def _delete_received(self, received: Sequence[ListedDeadLetter]) -> Sequence[bool]:
        """Delete what was received. Returns for each whether the broker accepted its receipt."""

    @abstractmethod
    async def _show_again(self, received: Sequence[ListedDeadLetter]) -> None:
        """Let other listings receive these again, at once."""

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        if cursor is None:
            await self._end_listing()
        unshown = self._unshown
        while len(unshown) <= limit and (more := await self._receive()):
            unshown += [listed for listed in more if listed.dead_letter.id not in self._shown]
        unshown.sort(key=lambda listed: listed.sent_at)
        page = [listed.dead_letter for listed in unshown[:limit]]
        self._unshown = unshown[limit:]
        self._shown |= {dead_letter.id for dead_letter in page}
        if self._unshown:
            return page, NEXT_PAGE
        await self._end_listing()
        return page, None

    async def remove(self, ids: Sequence[str]) -> int:
        wanted = set(ids)
        self._forget_void_receipts(wanted)
        removed = await self._delete(listed for id, listed in self._received.items() if id in wanted)
        more: dict[str, ListedDeadLetter] = {}
        while not wanted <= removed | more.keys() and (batch := await self._receive()):
            more |= {listed.dead_letter.id: listed for listed in batch}
        removed |= await self._delete(listed for id, listed in more.items() if id in wanted)
        others = [listed for id, listed in more.items() if id not in removed]
        if self._unshown:  # the next page shows them
            self._unshown += others
        else:
            await self._release(others)
        return len(removed)

    async def close(self) -> None:
        await self._end_listing()

    async def _receive(self) -> Sequence[ListedDeadLetter]:
        """Receive dead letters that this listing has not received yet; [] at its end. A listing that takes longer than
        `LISTING_TIMEOUT_S` receives its first dead letters again: they do not keep it from ending."""
        batch = {listed.dead_letter.id: listed for listed in await self._receive_batch()}
        new = [listed for id, listed in batch.items() if not self._is_listed(id)]
        self._received |= batch
        return new

    def _forget_void_receipts(self, ids: Iterable[str]) -> None:
        """Forget those of ``ids`` whose receipts the broker takes no longer. They are received again."""
        now = time.monotonic()
        for id in ids:
            listed = self._received.get(id)
            if listed is not None and not self._receipts_last and listed.hidden_until <= now:
                del self._received[id]

    def _is_listed(self, id: str) -> bool:
        listed = self._received.get(id)
        return listed is not None and listed.hidden_until > 0.0

    async def _delete(self, chosen: Iterable[ListedDeadLetter]) -> set[str]:
        """Delete ``chosen``, and return the ids of those that were there."""
        chosen = list(chosen)
        if not chosen:
            return set()
        accepted = await self._delete_received(chosen)
        deleted = {listed.dead_letter.id for listed, was_there in zip(chosen, accepted, strict=True) if was_there}
        for id in deleted:
            del self._received[id]
        return deleted

    async def _release(self, received: Iterable[ListedDeadLetter]) -> None:
        """Show dead letters to other listings again."""
        released = list(received)
        now = time.monotonic()
        hidden = [listed for listed in released if listed.hidden_until > now]
        if hidden:
            await self._show_again(hidden)
        for listed in released:
            listed.hidden_until = 0.0
            if not self._receipts_last:
                self._received.pop(listed.dead_letter.id, None)

    async def _end_listing(self) -> None:
        await self._release(self._received.values())
        self._shown.clear()
        self._unshown = []
