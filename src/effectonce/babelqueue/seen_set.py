"""A seen-set for babelqueue's idempotency guard, on any effectonce store instead of one process's memory.

    from babelqueue import idempotency
    from effectonce.babelqueue.seen_set import seen_set

    app.register("urn:babel:payments:charge", idempotency.wrap(seen_set(store, scope="payments"), charge))

Nothing of babelqueue is imported here: `SeenSet` has the three methods that its `wrap` calls.
"""

from __future__ import annotations

from typing import Any

from effectonce.core.codec import Codec
from effectonce.core.guarded_call.begin import begin, prepare_run
from effectonce.core.guarded_call.finish import finish
from effectonce.core.guarded_call.run import Policy, StoreRun
from effectonce.core.run_sync import run_sync
from effectonce.errors import ResultNotStored
from effectonce.guard.options import check_scope
from effectonce.store import DEFAULT_RETENTION, Store, require_store
from effectonce.values.durations import Duration, micros
from effectonce.values.identity import encode_key


class SeenSet:
    """The message ids that one consumer has handled. This is mode S: an id is looked up before the handler runs, and
    recorded after it.

    - No message is lost: an id is recorded only after the handler succeeded.
    - An effect is doubled where two deliveries of one id run at the same time, and where a handler's success was not
      recorded, since the process died or the store did not answer in between. The handler must tolerate that; ``once``
      makes it rarer.
    - A store that does not answer raises `StoreUnavailable`, from `seen` before the handler runs and from `remember`
      after it. babelqueue then redelivers; nothing is acked on a guess. But it counts that as an attempt, and drops a
      message after its ``max_attempts`` unless the app has ``dead_letter=True``: set it, with a backoff.
    """

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store = store
        self._policy = policy

    def seen(self, message_id: str) -> bool:
        """Whether this id was handled.

        Where a `once` has the same scope, its record may be claimed, in doubt or failed. Then `InProgress`, `InDoubt`
        or `PermanentFailure` is raised: neither to run nor to ack would be right.
        """
        run = self._prepare_run(message_id)
        try:
            run_sync(begin(run, run.runtime.sync_client()))
        except ResultNotStored:  # done, by a guard that could not store its result: it is not needed here
            return True
        return run.replayed

    def remember(self, message_id: str) -> None:
        """Record that this id was handled. A record that a `once` has made for it meanwhile stays as it is."""
        run = self._prepare_run(message_id)
        run_sync(finish(run, run.runtime.sync_client(), None))

    def forget(self, message_id: str) -> None:
        """Let the next delivery of this id run."""
        self._store.forget(self._policy.scope, message_id)

    def _prepare_run(self, message_id: str) -> StoreRun:
        return prepare_run(self._store.runtime, self._policy, encode_key(message_id), b"")

    def __repr__(self) -> str:
        return f"SeenSet({self._store!r}, scope={self._policy.scope!r})"


def seen_set(store: Store, *, scope: str, retention: Duration = DEFAULT_RETENTION) -> SeenSet:
    """Make a seen-set on ``store`` for ``babelqueue.idempotency.wrap``. `SeenSet` says what it promises.

    ``scope`` names the consumer and its handler. Two consumers that receive the same message need two scopes, or the
    first would hide it from the second. ``retention`` is how long an id is known: longer than the broker can redeliver.
    """
    require_store(store, "seen_set({}, …)")
    check_scope(scope)
    codec = Codec(Any, store.max_result)
    return SeenSet(store, Policy(scope=scope, codec=codec, seen_set=True, retention_us=micros(retention, "retention")))
