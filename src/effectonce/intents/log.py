"""The life of one intent: frozen, sent as often as it is safe, and settled by what came back.

The record's note is the log: the request as it was frozen, how often it went out, and when first. It is committed
before each send, so that whoever goes on after a crash knows that something may have left.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from effectonce.core.guarded_call.finish import abort, finish, leave
from effectonce.core.guarded_call.run import Run
from effectonce.core.notes import hidden, note, noted
from effectonce.core.store_runtime import StoreClient
from effectonce.errors import (
    CorruptRecord,
    EffectOnceError,
    InDoubt,
    LeaseLost,
    NotExecuted,
    OutcomeUnknown,
    scrubbed,
    show,
)
from effectonce.values.provider_keys import provider_key


class Log(Struct, array_like=True):
    """What is written down about one intent. Times are on the store's clock, in microseconds."""

    request: bytes  # JSON, as it was when the intent was first written down
    key: str
    account: str
    step: str
    generation: int = 0  # of the record, when the counts below began
    rounds: int = 0  # how often it was proven that nothing had happened, and it began anew
    first_sent_at: int = 0
    send_count: int = 0
    joined: bool = False  # its completion joins rows of the caller's, so nobody else may complete it
    outcome: bytes | None = None  # of such a one: what it gave, found by a recovery or said by an operator
    doubted: bool = False  # of such a one: it waits for an operator's word
    within: bool = False  # a saga's step made it: that goes on with it, or turns around and never does

    def begin_anew(self) -> None:
        self.first_sent_at = self.send_count = 0
        self.outcome = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Log).decode


class Terms(Struct, frozen=True, kw_only=True):
    """Under which conditions an operation may be sent again."""

    provider: str
    operation: str
    scope: str
    keyed: bool
    window: int  # how long the provider keeps a key
    margin: int
    repeats: bool  # of a provider without keys: sent again, at the risk of doing it twice

    def id(self, key: str, account: str, step: str) -> str:
        """What the intent is known by."""
        return provider_key(self.provider, account, self.scope, self.operation, key, step)

    def key(self, log: Log) -> str:
        """The key that goes to the provider. Another generation is another key."""
        generation = f"{log.generation}.{log.rounds}" if log.rounds else str(log.generation)
        return provider_key(self.provider, log.account, self.scope, self.operation, log.key, log.step, generation)

    def next(self, log: Log, now: int) -> Literal["send", "reconcile"]:
        """Send it, or find out first: it went out before, and to send it again is not safe, or no longer."""
        if not log.send_count or (self.repeats and not self.keyed):
            return "send"
        return "send" if self.keyed and now < log.first_sent_at + self.window - self.margin else "reconcile"


def frozen(log: Log) -> bytes:
    """The note of an intent that is first written down."""
    return _encode(log)


def read(stored: bytes | None) -> Log:
    try:
        return _decode(stored or b"")
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"the log of an intent cannot be read: {error}; upgrade this process") from error


def log_of(run: Run) -> Log:
    """The log of a claimed intent. What was counted before an operator's retry counts no longer."""
    log = read(noted(run))
    if log.generation != run.generation:
        log.generation = run.generation
        log.begin_anew()
    return log


def now(run: Run, began: float) -> int:
    """The store's time, as far as this process can know it without asking: when the claim was granted, and since.

    ``began``: this process's clock before it asked for the claim. So it is late rather than early: a resend that
    may come too late is not made.
    """
    return run.token + max(0, round((run.runtime.monotonic() - began) * 1e6))


async def stamp(run: Run, client: StoreClient, log: Log, terms: Terms, began: float) -> None:
    """Commit that it goes out now. `InDoubt` where that has become unsafe meanwhile."""
    if run.parent is not None and run.parent.lease_lost:
        await leave(run, client, "free", "lease-lost")
        raise LeaseLost(f"{_about(run, log)} was not sent: what calls it has lost its lease, or has timed out")
    log.send_count += 1
    log.first_sent_at = log.first_sent_at or run.token
    await note(run, client, _encode(log))
    if run.lease_lost:
        raise LeaseLost(f"{_about(run, log)}: the lease ended before it was sent; another goes on with it")
    if log.send_count > 1 and terms.keyed and terms.next(log, now(run, began)) != "send":
        await doubt(run, client, log, "the provider may no longer keep its key")


async def doubt(run: Run, client: StoreClient, log: Log, why: str) -> None:
    """Nobody knows: an operator decides. Where that could not be recorded nobody would be told, so the next delivery
    has to record it."""
    log.doubted = log.joined
    if not await leave(run, client, "in_doubt", why, hidden(run, _encode(log))):
        raise OutcomeUnknown(f"{_about(run, log)}: {why}, and that could not be recorded; deliver it again", 1.0)
    raise InDoubt(
        f"{_about(run, log)} is in doubt: {why}; look it up at the provider, then decide: effectonce intents resolve"
    )


async def unknown(
    run: Run, client: StoreClient, log: Log, terms: Terms, why: str, retry_after: float, askable: bool
) -> None:
    """It was sent, and nobody can tell. With a key it may be sent again; with a reconciler (``askable``) it can be
    looked up; else it is in doubt."""
    if not terms.keyed and not terms.repeats and not askable:
        await doubt(run, client, log, why)
    await leave(run, client, "free", why)
    raise OutcomeUnknown(
        f"{_about(run, log)} was sent, and what came of it is unknown: {why}; deliver it again, it goes out with the "
        "same key or is looked up",
        retry_after,
    )


async def turned_away(run: Run, client: StoreClient, log: Log, why: str, retry_after: float) -> None:
    """Nothing happened, so the next send is a first one."""
    log.begin_anew()
    await leave(run, client, "free", why, hidden(run, _encode(log)))
    raise NotExecuted(f"{_about(run, log)} was not executed: {why}; deliver it again later", retry_after)


class Refused(Exception):
    """What is stored of a failure that is no exception of the operation's own."""


async def fail(run: Run, client: StoreClient, error: Exception | None, why: str) -> None:
    """It will never happen: that is recorded, and every duplicate is told; without the secrets of a URL."""
    ours = error is None or isinstance(error, EffectOnceError) or _hides(error)
    await abort(run, client, Refused(why) if ours or error is None else error)


def _hides(error: Exception) -> bool:
    """Whether its text is not to be stored: it holds a secret, or cannot even be made."""
    try:
        return scrubbed(text := str(error)) != text
    except Exception:
        return True


async def found(run: Run, client: StoreClient, log: Log, outcome: bytes) -> bool:
    """It happened, and that is written down for the delivery that will complete it with its rows. Whether it is."""
    log.outcome, log.doubted = outcome, False
    return await leave(run, client, "free", "it waits for its delivery", hidden(run, _encode(log)))


async def retried(run: Run, client: StoreClient, log: Log) -> bool:
    """An operator lets one that is ``joined`` begin anew. Whether that is written down."""
    log.doubted = False
    return await leave(run, client, "free", "an operator's retry", hidden(run, _encode(log)))


async def complete(run: Run, client: StoreClient, result: object) -> None:
    await finish(run, client, result)


def _about(run: Run, log: Log) -> str:
    return f"intent {run.key} ({show(run.scope)}, key {show(log.key)!r})"
