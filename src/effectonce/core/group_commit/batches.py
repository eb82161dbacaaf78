"""Making batches of the operations that wait, and handing their replies to the callers.

Pure functions over the queue of a group. The group calls them from one place at a time: its leader, or its event loop.
An operation is in the queue, in the batch that was taken, or behind another one on the same identity (`Entry.behind`),
and in none of these once it is paired with its reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from msgspec import Struct, field

from effectonce.record import Answer, Batchable, Claim, Look, Reply

MAX_BATCH_BYTES = 1_000_000


class BatchSizes(Struct):
    """How large the batches of one group or batcher were, for a histogram."""

    operations: int = 0
    #: ``batches[n]`` counts the batches whose size has ``n`` bits: 1, 2 to 3, 4 to 7 and so on, up to 65,535.
    batches: list[int] = field(default_factory=lambda: [0] * 17)

    def add(self, size: int) -> None:
        """Count a batch of ``size`` operations, unless it is empty."""
        if size:
            self.operations += size
            self.batches[size.bit_length()] += 1


class Entry(Struct, eq=False):
    """One operation that waits for its reply, and the operations on the same identity that wait behind it.

    The cycle collector must see it: an error keeps the frames that it passed, those keep the entry, and that the error.
    """

    op: Batchable
    behind: list[Self] | None = None


E = TypeVar("E", bound=Entry)


def take_batch(
    queue: deque[E], limit: int, sizes: BatchSizes, is_abandoned: Callable[[E], bool] | None = None
) -> list[E]:
    """Take from the queue what may go out together: no identity twice, sorted, bounded in number and bytes.

    Sorted by identity, because then every batch locks in the same order (unsorted batches deadlock each other). A claim
    that ``is_abandoned`` by its caller is left out. A settlement goes out all the same: the effect has happened, and
    only its caller was cancelled. The batch is counted in ``sizes``.
    """
    chosen: dict[tuple[str, str], E] = {}
    size = 0
    while queue and len(chosen) < limit:
        entry = queue.popleft()
        op = entry.op
        if is_abandoned is not None and isinstance(op, (Claim, Look)) and is_abandoned(entry):
            continue
        size += len(getattr(op, "result", None) or b"") + len(getattr(op, "note", None) or b"")
        if size > MAX_BATCH_BYTES and chosen:
            queue.appendleft(entry)
            break
        first = chosen.setdefault((op.scope, op.key), entry)
        if first is not entry:
            if first.behind is None:
                first.behind = []
            first.behind.append(entry)
    sizes.add(len(chosen))
    return list(map(chosen.__getitem__, sorted(chosen)))


def pair_replies(entries: Sequence[E], replies: Sequence[Reply], queue: deque[E]) -> list[tuple[E, Reply]]:
    """Pair each entry with its reply. Entries behind one that its reply does not answer return to the queue's front."""
    if len(replies) != len(entries):
        wrong = RuntimeError(f"the port gave {len(replies)} replies to {len(entries)} operations")
        return [(waiter, wrong) for entry in entries for waiter in entry_and_followers(entry)]
    pairs = list(zip(entries, replies, strict=True))
    unanswered: list[E] = []
    for entry, reply in [pair for pair in pairs if pair[0].behind is not None]:
        answered, others = share_reply(entry, reply)
        entry.behind = None
        pairs.extend((other, reply) for other in answered)
        unanswered.extend(others)
    queue.extendleft(reversed(unanswered))
    return pairs


def share_reply(entry: E, reply: Reply) -> tuple[list[E], list[E]]:
    """Split the claims that wait behind ``entry`` into those that its reply answers, too, and those to send again.

    The reason for a refusal holds for every claim with the same payload; only a grant belongs to one. This keeps a
    thousand duplicates of one key at a handful of round trips.
    """
    op, behind = entry.op, entry.behind or []
    if not isinstance(op, Claim) or not isinstance(reply, Answer) or reply.kind == "claimed":
        return [], behind
    answered: list[E] = []
    others: list[E] = []
    for other in behind:
        same = (
            isinstance(other.op, Claim)
            and other.op.fingerprints == op.fingerprints
            and other.op.max_attempts == op.max_attempts
            and (op.waiting or not other.op.waiting)
        )
        (answered if same else others).append(other)
    return answered, others


def entry_and_followers(entry: E) -> list[E]:
    """``entry`` and all that wait behind it."""
    return [entry, *(entry.behind or ())]


def split_for_resend(entries: Sequence[E]) -> list[E]:
    """Undo the grouping of a batch that got no reply: every entry is sent again by itself."""
    waiters = [waiter for entry in entries for waiter in entry_and_followers(entry)]
    for waiter in waiters:
        waiter.behind = None
    return waiters


def is_grant(op: Batchable, reply: Reply | None) -> bool:
    """Whether the reply grants a claim, which must be given back where the caller is gone."""
    return isinstance(op, Claim) and isinstance(reply, Answer) and reply.kind == "claimed"
