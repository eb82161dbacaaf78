"""How a guarded call begins: it claims its key, waits for another delivery, replays, or is refused.

`prepare_run` does not ask the store; `begin` claims. A caller that sends its claims itself (a worker, in batches) calls
`prepare_run`, `StoreRun.claim_request` and, with the store's answer, `take_answer`. A process that dies after the claim
leaves a lease that ends by itself.
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from effectonce.core.claim_errors import claim_error
from effectonce.core.codec import ABANDONED_ERROR, without_trace
from effectonce.core.store_clients import StoreClient, release_with_refund
from effectonce.core.store_runtime import StoreRuntime
from effectonce.core.waiting import FIRST_POLL_S, MAX_POLL_S
from effectonce.errors import ConfigurationError, CorruptRecord, Reentered, StoreUnavailable, show
from effectonce.record import Answer, Claim, Look, last_error_of

from .process_deadline import adjust_lease
from .run import NO_LEASE, Policy, Run, StoreRun, current_run

MAX_LATE_GRANTS: Final = 3
"""How often a key is claimed whose grants arrive after their leases. Then the lease is too short for this store."""


def prepare_run(runtime: StoreRuntime, policy: Policy, key: str, fingerprints: bytes) -> StoreRun:
    """Make the run of a call with ``key``. `begin` is to follow. Raises `Reentered` inside a run of the same key."""
    parent = current_run.get()
    if parent is not None:
        parent = _enclosing_run(parent, runtime, policy.scope, key)
    stored_key = key
    if runtime.privacy is not None:
        stored_key = runtime.privacy.hide(policy.scope, key)
        fingerprints = runtime.privacy.hide_fingerprints(policy.scope, fingerprints)
    run = StoreRun(runtime, policy, key, parent, stored_key, fingerprints=fingerprints)
    if not policy.seen_set:
        run.owner = runtime.new_owner()
        run.lease_requested_at = runtime.monotonic()
    return run


def prepare_noted_run(runtime: StoreRuntime, policy: Policy, key: str, fingerprints: bytes, what: str) -> StoreRun:
    """`prepare_run` for ``what``, which keep their progress in a note. Raises `ConfigurationError` on a store without
    notes."""
    if not runtime.backend.capabilities.notes:
        raise ConfigurationError(
            f"{runtime.backend!r} keeps no notes, which {what} need; use sqlite://, postgresql:// or mysql://"
        )
    return prepare_run(runtime, policy, key, fingerprints)


def _enclosing_run(innermost: Run, runtime: StoreRuntime, scope: str, key: str) -> Run | None:
    """The run around a new call of ``key``. Raises `Reentered` if it, or one further out, has the same key."""
    parent: Run | None = innermost
    while parent is not None and not parent.active:  # its handler has ended, and had started this task
        parent = parent.parent
    outer = parent
    while outer is not None:
        if outer.key == key and outer.scope == scope and outer.active and outer.runtime is runtime:
            raise Reentered(
                f"scope {show(scope)!r} is already running key {show(key)!r} in this call: a handler that calls itself "
                "with its own key would wait for itself; give the inner call its own scope or key"
            )
        outer = outer.parent
    return parent


async def begin(run: StoreRun, client: StoreClient) -> None:
    """Claim ``run``. Then the caller calls the handler, unless ``run.replayed``: ``run.value`` is the result then.

    A grant that arrives when its lease is over is given back, and the key is claimed again: another delivery may have
    taken it over. Raises an error for every other answer (in progress, in doubt, failed, …), and `StoreUnavailable` if
    the store does not answer, unless the guard says ``on_store_error="run"``.
    """
    lapsed = False
    for _ in range(MAX_LATE_GRANTS):
        adjust_lease(run)
        try:
            answer = await _claim(run, client, run.claim_request())
        except StoreUnavailable as error:
            run_without_store(run, error)
            return
        # Outside the `try`: if the store fails now, on_store_error="run" must not start a handler beside another one.
        if answer.kind == "in_progress" and run.policy.wait_s is not None:
            answer = await _wait_for_other_delivery(run, client, run.policy.wait_s)
        if answer.kind != "claimed" or not run.lease_lost:
            take_answer(run, replace(answer, lapsed=True) if lapsed else answer)
            return
        lapsed = lapsed or answer.lapsed  # the store forgets it with the grant
        await _give_late_grant_back(run, client, answer)
    raise StoreUnavailable(
        f"scope {show(run.scope)!r}, key {show(run.key)!r}: the store granted the claim {MAX_LATE_GRANTS} times, each "
        f"time after its lease of {run.policy.lease_us / 1e6:g} s was over; make lease= longer than the store needs"
    )


async def _claim(run: StoreRun, client: StoreClient, claim: Claim | Look) -> Answer:
    """Send ``claim``. If its answer is lost, the heartbeat releases what may have been granted: ``run`` ends here."""
    try:
        return await client.claim(claim)
    except (ConfigurationError, asyncio.CancelledError, GeneratorExit):
        raise  # nothing was granted, or the client gives it back
    except BaseException:
        # With on_store_error="run" the handler runs all the same, and a grant keeps others from running beside it.
        if isinstance(claim, Claim) and not run.policy.run_on_store_error:
            run.runtime.heartbeat.release_later(claim)
        raise


async def _give_late_grant_back(run: StoreRun, client: StoreClient, answer: Answer) -> None:
    """Release a grant whose lease is over, and let ``run`` claim again under another owner. If another delivery has
    taken over, the release changes nothing. If the store does not answer it, ``run`` ends here, and the heartbeat
    releases the grant: else the next delivery would find a lapsed lease, as after a crash."""
    claim = run.claim_request()
    assert isinstance(claim, Claim)
    try:
        await client.settle(release_with_refund(claim, answer))
    except StoreUnavailable:
        run.runtime.heartbeat.release_later(claim)
        raise
    run.owner = run.runtime.new_owner()
    run.lease_requested_at = run.runtime.monotonic()


async def _wait_for_other_delivery(run: StoreRun, client: StoreClient, wait: float) -> Answer:
    """Claim again whenever the record may have changed, until the answer is final or ``wait`` seconds are over."""
    runtime = run.runtime
    deadline = runtime.monotonic() + wait
    identity = (run.scope, run.stored_key)
    claim = run.claim_request()
    assert isinstance(claim, Claim)
    claim.waiting = True
    wake_up = client.new_wake_up()
    poll = FIRST_POLL_S
    try:
        # Register before claiming again: a settlement in between would be missed.
        runtime.waiters.add(identity, wake_up.wake)
        runtime.change_listener.start()
        while True:
            wake_up.clear()
            adjust_lease(run)
            claim.lease_us = run.policy.lease_us
            run.lease_requested_at = runtime.monotonic()
            answer = await _claim(run, client, claim)
            seconds_left = deadline - runtime.monotonic()
            if answer.kind != "in_progress" or seconds_left <= 0:
                return answer
            await wake_up.wait(min(poll, seconds_left, max(answer.retry_after, 0.001)))
            poll = min(poll * 2, MAX_POLL_S)
    finally:
        runtime.waiters.remove(identity, wake_up.wake)


def take_answer(run: StoreRun, answer: Answer) -> None:
    """Start ``run`` if the claim was granted. Otherwise replay the stored result, or raise why it may not run."""
    if answer.kind == "claimed":
        runtime = run.runtime
        run.answer, run.token = answer, answer.token
        runtime.leased_runs.add(run)  # from now on the heartbeat renews its lease
        runtime.heartbeat.cover(run.policy.lease_us)
        run.started_at = runtime.monotonic()
        if runtime.hooks:
            run.emit("claimed", "lapsed" if answer.lapsed else "", run.started_at - run.lease_requested_at)
    elif answer.kind == "absent":  # mode S: no claim, no lease, and no attempt is counted
        run.started_at = run.runtime.monotonic()
        run.emit("claimed")
    else:
        _replay(run, answer)


def run_without_store(run: StoreRun, error: StoreUnavailable) -> None:
    """Let ``run`` start although the store did not answer, if ``on_store_error="run"``. Otherwise raise ``error``."""
    if not run.policy.run_on_store_error:
        raise error
    run_unprotected(run, "unprotected", str(error))


def run_unprotected(run: StoreRun, why: str, detail: str) -> None:
    """Let ``run`` start without a claim, as the user has chosen. Each time it emits an event of the kind ``why``."""
    run.protected = False
    run.lease_requested_at = NO_LEASE
    run.emit(why, detail)


def read_last_error(run: StoreRun, answer: Answer) -> bytes | None:
    """The last error that an attempt before reported, of a granted claim or where no attempt is left. None: there is
    none, or it cannot be read, which must not hide that the attempts are used up."""
    try:
        return run.unseal(last_error_of(answer.error), answer.generation)
    except CorruptRecord:
        return None


def _replay(run: StoreRun, answer: Answer) -> None:
    """Put the stored result into ``run.value``. Raises if there is none, or if the answer is not ``done``."""
    run.answer, run.token = answer, answer.token
    run.active = False
    run.replayed = True
    if answer.kind == "done":
        run.emit("replayed")
        stored = run.unseal(answer.result, answer.generation)
        if stored is not None:
            stored, run.trace = without_trace(stored)
            if run.trace and run.runtime.tracer is not None:
                run.runtime.tracer.link_replay(run)
            run.value = run.policy.codec.decode(stored)
            return
        if run.policy.codec.discards:
            return
    else:
        run.emit(answer.kind)
    error = answer.error
    if answer.kind == "exhausted":
        error = read_last_error(run, answer)
    elif answer.kind == "failed" and error != ABANDONED_ERROR:  # an operator who abandoned it may not have the secret
        error = run.unseal(error, answer.generation)
    raise claim_error(answer, run.scope, run.key, error, run.policy.permanent)
