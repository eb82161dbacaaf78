"""The log of one intent, and the ways in which it is committed: frozen, sent as often as is safe, and settled.

The record's note is the log: the request as it was frozen, how often it was sent, and when first. It is committed
before each send, so that the process that resumes it after a crash knows that something may have been sent.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from effectonce.core.engine import Side
from effectonce.core.flow import Run, abort, finish, leave
from effectonce.core.notes import read_note, seal_note, write_note
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


class LoggedIntent(Struct, array_like=True):
    """Everything that is recorded about one intent. Times are on the store's clock, in microseconds.

    Stored as an array: fields are only ever added at the end.
    """

    request: bytes  # JSON, as it was when the intent was first recorded
    key: str
    account: str
    step: str
    generation: int = 0  # the record's generation when the counts below began
    rounds: int = 0  # how often it was proven that nothing had happened, and it started over
    first_sent_at: int = 0
    send_count: int = 0
    transactional: bool = False  # only its caller's transaction completes it, together with the caller's rows
    outcome: bytes | None = None  # of a transactional one: its result, found by a recovery or given by an operator
    doubted: bool = False  # of a transactional one: it waits for an operator's decision
    in_saga: bool = False  # a saga's step made it: the saga resumes it, or turns around and never does

    def start_over(self) -> None:
        self.first_sent_at = self.send_count = 0
        self.outcome = None


encode_log = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LoggedIntent).decode


class ResendRules(Struct, frozen=True, kw_only=True):
    """The conditions under which an operation may be sent again."""

    provider: str
    operation: str
    scope: str
    keyed: bool
    window: int  # how long the provider keeps a key
    margin: int
    repeats: bool  # for a provider without keys: send again, at the risk of a second effect

    def intent_id(self, key: str, account: str, step: str) -> str:
        """Return the id of an intent."""
        return provider_key(self.provider, account, self.scope, self.operation, key, step)

    def provider_key(self, log: LoggedIntent) -> str:
        """Return the key that is sent to the provider. Another generation has another key."""
        generation = f"{log.generation}.{log.rounds}" if log.rounds else str(log.generation)
        return provider_key(self.provider, log.account, self.scope, self.operation, log.key, log.step, generation)

    def decide_next(self, log: LoggedIntent, now: int) -> Literal["send", "reconcile"]:
        """Decide whether to send, or to find out first because it was sent before and a resend is not safe."""
        if not log.send_count or (self.repeats and not self.keyed):
            return "send"
        key_is_kept = self.keyed and now < log.first_sent_at + self.window - self.margin
        return "send" if key_is_kept else "reconcile"


def decode_log(stored: bytes | None) -> LoggedIntent:
    try:
        return _decode(stored or b"")
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"the log of an intent cannot be read: {error}; upgrade this process") from error


def read_log(run: Run) -> LoggedIntent:
    """Read the log of a claimed intent. An operator's retry is a new generation: its counts start over."""
    log = decode_log(read_note(run))
    if log.generation != run.generation:
        log.generation = run.generation
        log.start_over()
    return log


def estimate_store_time(run: Run, began: float) -> int:
    """Estimate the store's time without asking: the time of the claim, plus the time since.

    ``began`` is this process's clock before it asked for the claim, so the estimate is late rather than early: a
    resend that may come too late is not made.
    """
    return run.token + max(0, round((run.engine.monotonic() - began) * 1e6))


async def record_send(run: Run, side: Side, log: LoggedIntent, rules: ResendRules, began: float) -> None:
    """Commit that the request goes out now. Raises `InDoubt` where that has become unsafe meanwhile."""
    if run.parent is not None and run.parent.lease_lost:
        await leave(run, side, "free", "lease-lost")
        raise LeaseLost(f"{_describe(run, log)} was not sent: its caller has lost its lease, or has timed out")
    log.send_count += 1
    log.first_sent_at = log.first_sent_at or run.token
    await write_note(run, side, encode_log(log))
    if run.lease_lost:
        raise LeaseLost(f"{_describe(run, log)}: the lease ended before it was sent; another process resumes it")
    if log.send_count > 1 and rules.keyed and rules.decide_next(log, estimate_store_time(run, began)) != "send":
        await settle_in_doubt(run, side, log, "the provider may no longer keep its key")


async def settle_in_doubt(run: Run, side: Side, log: LoggedIntent, why: str) -> None:
    """Put the intent in doubt: an operator decides. If that cannot be recorded no operator would see it, so the next
    delivery has to record it."""
    log.doubted = log.transactional
    if not await leave(run, side, "in_doubt", why, seal_note(run, encode_log(log))):
        raise OutcomeUnknown(f"{_describe(run, log)}: {why}, and that could not be recorded; deliver it again", 1.0)
    raise InDoubt(
        f"{_describe(run, log)} is in doubt: {why}; look it up at the provider, then decide: effectonce intents resolve"
    )


async def leave_unknown(
    run: Run, side: Side, log: LoggedIntent, rules: ResendRules, why: str, retry_after: float, has_reconciler: bool
) -> None:
    """Release an intent that was sent with an unknown outcome: with a key it may be sent again, with a reconciler it
    can be looked up. With neither it is in doubt."""
    if not rules.keyed and not rules.repeats and not has_reconciler:
        await settle_in_doubt(run, side, log, why)
    await leave(run, side, "free", why)
    raise OutcomeUnknown(
        f"{_describe(run, log)} was sent, and its outcome is unknown: {why}; deliver it again, it goes out with the "
        "same key or is looked up",
        retry_after,
    )


async def leave_not_executed(run: Run, side: Side, log: LoggedIntent, why: str, retry_after: float) -> None:
    """Release an intent that had no effect, so that the next send counts as the first."""
    log.start_over()
    await leave(run, side, "free", why, seal_note(run, encode_log(log)))
    raise NotExecuted(f"{_describe(run, log)} was not executed: {why}; deliver it again later", retry_after)


class ProviderRefusal(Exception):
    """The stored error of a failure that has no exception of the operation's own."""


async def settle_failed(run: Run, side: Side, error: Exception | None, why: str) -> None:
    """Settle the intent as failed for good, which every duplicate gets as well; without the secrets of a URL."""
    if error is None or isinstance(error, EffectOnceError) or _is_unfit_to_store(error):
        error = ProviderRefusal(why)
    await abort(run, side, error)


def _is_unfit_to_store(error: Exception) -> bool:
    """Whether the text of ``error`` holds a secret, or its own __str__ raises."""
    try:
        text = str(error)
        return scrubbed(text) != text
    except Exception:
        return True


async def record_outcome(run: Run, side: Side, log: LoggedIntent, outcome: bytes) -> bool:
    """Record the result of a transactional intent, for the delivery that will complete it with its rows. Returns
    whether it was recorded."""
    log.outcome, log.doubted = outcome, False
    return await leave(run, side, "free", "it waits for its delivery", seal_note(run, encode_log(log)))


async def record_retry(run: Run, side: Side, log: LoggedIntent) -> bool:
    """Record that an operator lets a transactional intent start over. Returns whether it was recorded."""
    log.doubted = False
    return await leave(run, side, "free", "an operator's retry", seal_note(run, encode_log(log)))


async def complete(run: Run, side: Side, result: object) -> None:
    pending = finish(run, side, result)
    if pending is not None:
        await pending


def _describe(run: Run, log: LoggedIntent) -> str:
    return f"intent {run.key} ({show(run.scope)}, key {show(log.key)!r})"
