"""How a guarded call ends: its success is recorded, or its failure is stored, released or left in doubt.

In a guarded call one of `finish`, `abort` and `settle_unfinished` follows a claim that was granted, and `StoreRun.end`
follows that. Each ends the handler first, so that `current()` no longer returns the run. The store refuses a settlement
that another claim has overtaken, and changes nothing.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

from effectonce.core.codec import Unstorable, encode_error, encode_last_error, with_trace
from effectonce.core.interrupts import find_interrupt
from effectonce.core.retry import mark_final
from effectonce.core.store_clients import StoreClient
from effectonce.errors import ConfigurationError, EffectOnceError, LeaseLost, StoreUnavailable, show
from effectonce.record import Remember, Reply, Settlement

from .run import StoreRun

log = logging.getLogger("effectonce")


async def finish(run: StoreRun, client: StoreClient, value: Any) -> None:
    """Record the success of ``run``, whose handler returned ``value``.

    Raises `LeaseLost` if another delivery took over, and `StoreUnavailable` if the success could not be recorded: the
    effect has happened then, and may happen again. With ``on_store_error="run"`` the latter is only an event. What a
    signal handler raises meanwhile (a time limit) is raised at the end, when the success is recorded or cannot be.
    """
    run.end_handler()
    if not run.protected:
        return
    interrupts: list[BaseException] = []  # what signal handlers raise meanwhile
    try:
        result = encode_result(run, value)
    except Exception as error:  # of a signal handler: the codec itself raises only what `encode_result` catches
        interrupts.append(error)
        result = encode_result(run, value)
    try:
        applied = await _settle_done(run, client, result, interrupts)
    except StoreUnavailable as error:
        run.emit("unrecorded", str(error))
        unrecorded = StoreUnavailable(
            f"scope {show(run.scope)!r}, key {show(run.key)!r}: the handler ran, but that could not be recorded: "
            f"it must be delivered again, and its effect may repeat: {error}",
            error.retry_after,
        )
        if interrupts:
            raise interrupts[0] from unrecorded
        if not run.policy.run_on_store_error:
            raise unrecorded from error
        return
    except Exception as error:
        if interrupts:
            raise interrupts[0] from error
        raise
    confirm_reply(run, applied)
    if interrupts:
        raise interrupts[0]


def encode_result(run: StoreRun, value: Any) -> bytes | None:
    """Encode ``value`` for the store. Returns None, and logs a warning, where it cannot be stored."""
    try:
        return run.policy.codec.encode(value)
    except Unstorable as error:
        log.warning("scope %s: the result is not stored: %s", show(run.scope), str(error))
        run.emit("result_not_stored", str(error))
        return None


async def _settle_done(
    run: StoreRun, client: StoreClient, result: bytes | None, interrupts: list[BaseException]
) -> bool:
    """Settle as done; without ``result``, if the store cannot keep it. Returns the store's reply."""
    try:
        return await _settle_or_repeat(run, client, result, interrupts)
    except (StoreUnavailable, ConfigurationError):
        raise
    except Exception as error:
        if result is None:
            raise
        run.emit("result_not_stored", f"{type(error).__name__}: {error}")
    return await client.settle(make_completion(run, None))


async def _settle_or_repeat(
    run: StoreRun, client: StoreClient, result: bytes | None, interrupts: list[BaseException]
) -> bool:
    """Settle as done, and once more after an error that is not the store's answer. An exception that a signal handler
    raised meanwhile is added to ``interrupts``: the caller raises it when the success is recorded, or cannot be."""
    try:
        return await client.settle(make_completion(run, result))
    except (StoreUnavailable, ConfigurationError):
        raise
    except Exception as error:
        interrupt = find_interrupt(error)
        if interrupt is not None:
            interrupts.append(interrupt)
        elif result is None:
            raise
    return await client.settle(make_completion(run, result))


def confirm_reply(run: StoreRun, reply: Reply) -> None:
    """Check the store's ``reply`` to what `make_completion` made. Raises unless it says that the success is recorded:
    `LeaseLost` if another delivery took over, otherwise the store's own error."""
    if isinstance(reply, Exception):
        run.emit("unrecorded", str(reply))
        raise reply
    runtime = run.runtime
    if runtime.waiters.waiting:
        runtime.waiters.wake((run.policy.scope, run.stored_key))
    if reply is True:
        if runtime.hooks:
            run.emit("completed")
        return
    run.emit("fenced")
    if not run.policy.seen_set:  # mode S holds no claim: False means that another guard's claim, doubt or failure stays
        raise LeaseLost(
            f"scope {show(run.scope)!r}, key {show(run.key)!r}: the lease ended and another delivery took over, or an "
            "operator settled it; this attempt's outcome was not recorded and its effect may have happened twice"
        )


def make_completion(run: StoreRun, result: bytes | None) -> Settlement | Remember:
    """End the handler of ``run``, and make the operation that records its success.

    With a tracer, ``result`` is stored together with the trace of the handler.
    """
    run.end_handler()
    policy, tracer = run.policy, run.runtime.tracer
    if tracer is not None and result is not None:
        result = with_trace(result, run.trace or tracer.current_context())
    if run.runtime.privacy is not None:
        result = run.seal(result)
    retention = policy.retention_us if run.parent is None else max(policy.retention_us, run.parent.min_retention)
    if policy.seen_set:
        return Remember(policy.scope, run.stored_key, retention, run.fingerprints, result)
    return run.settlement("done", retention, result)


async def abort(run: StoreRun, client: StoreClient, error: BaseException, *, refund: bool = False) -> None:
    """Settle ``run``, whose handler raised ``error``: failed for a permanent one, otherwise free or in doubt, with
    the error for operators to see. With ``refund``, a release takes the attempt back.

    Raises no `Exception` of its own, since the caller has to see the handler's. If the settlement fails, the lease ends
    by itself.
    """
    run.end_handler()
    policy = run.policy
    if not run.protected or run.replayed or isinstance(error, GeneratorExit):
        return
    if policy.seen_set:
        run.emit("released", type(error).__name__)
        return
    if not run.holds_claim:  # interrupted before its claim was answered
        return
    settlement = run.settlement("in_doubt" if policy.doubt_on_error else "free", policy.unfinished_retention_us)
    if isinstance(error, policy.permanent) and not isinstance(error, EffectOnceError):
        settlement.state = "failed"
        settlement.retention_us = max(policy.retention_us, run.min_retention)
        settlement.error = run.seal(encode_error(error))
        mark_final(error)
    else:
        settlement.error = run.seal(encode_last_error(error))
        settlement.refund = refund
    await _settle(run, client, settlement, type(error).__name__)


async def settle_unfinished(
    run: StoreRun,
    client: StoreClient,
    state: Literal["free", "in_doubt"],
    why: str,
    note: bytes | None = None,
    error: BaseException | None = None,
) -> bool:
    """Settle a run that neither raised nor is done: as free for the next delivery, or as in doubt. Returns whether that
    is recorded.

    ``note``, sealed by `seal_note`, replaces the record's note; ``error`` is kept for operators to see. Like `abort`,
    it raises no `Exception` of its own.
    """
    run.end_handler()
    if not run.protected or not run.holds_claim:
        return True
    settlement = run.settlement(state, run.policy.unfinished_retention_us)
    settlement.note = note
    if error is not None:
        settlement.error = run.seal(encode_last_error(error))
    return await _settle(run, client, settlement, why)


async def _settle(run: StoreRun, client: StoreClient, settlement: Settlement, why: str) -> bool:
    """Settle, and emit the result as an event. A failure of the store is logged: the lease ends by itself. What a
    signal handler raises meanwhile is raised afterwards."""
    interrupt: BaseException | None = None
    try:
        try:
            applied = await client.settle(settlement)
        except Exception as error:
            interrupt = find_interrupt(error)
            if interrupt is None:
                raise
            applied = await client.settle(settlement)
    except Exception as error:
        log.warning("scope %s: could not be settled as %s: %s", show(run.scope), settlement.state, error)
        run.emit("unrecorded", str(error) if isinstance(error, EffectOnceError) else type(error).__name__)
        return False
    run.runtime.waiters.wake((run.scope, run.stored_key))
    kind = "released" if settlement.state == "free" else settlement.state
    run.emit(kind if applied else "fenced", why)
    if interrupt is not None:
        raise interrupt
    return applied
