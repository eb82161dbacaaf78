"""Celery: a base for tasks under `once`. It settles duplicates as a broker expects, without losing one.

    @app.task(base=OnceTask)
    @eo.once(store, key="payment_id")
    def charge(payment_id: str, amount: int) -> str: ...

A duplicate of a finished task succeeds with the first one's result, so that chains, groups and callbacks work. One
that arrives while the first runs, or while the store does not answer, is retried later, without using up
``max_retries``: while the first runs after 0.2 s, then after twice as long each time, at most until its lease ends.
``autoretry_for`` is for what the function itself raises. Models are passed and returned with Celery's own
``pydantic=True``. A task is acked after it ran (``acks_late``), and delivered again if its worker was killed
(``reject_on_worker_lost``). A task that is revoked or exceeds its time limit is over for Celery; its record is
released, or its lease lapses if the process was killed. ``self.retry()`` is an exception like any other: under
``on_error="doubt"`` the retry finds the task in doubt.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NoReturn

import celery.exceptions
from celery import Task

from effectonce.core.delivery_outcome import Ack, Redeliver, decide_delivery, log_outcome
from effectonce.errors import ConfigurationError, EffectOnceError, show
from effectonce.guard.once import Guarded
from effectonce.values.durations import span_text

log = logging.getLogger("effectonce")

#: The header that counts the retries that Celery does not.
REDELIVERIES_HEADER: Final = "effectonce_redeliveries"

#: By transport: seconds until an unacked message is delivered again, unless ``visibility_timeout`` is set.
DEFAULT_VISIBILITY_TIMEOUT_S: Final = {"redis": 3600, "rediss": 3600, "sentinel": 3600, "sqs": 1800}


class OnceTask(Task):  # type: ignore[misc]  # Celery ships no types
    """The base of tasks whose function is under `once`; see the module."""

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    dont_autoretry_for = (EffectOnceError,)  # handled below; `autoretry_for` would count and lose them

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Raise `ConfigurationError` if the guard is missing, or its lease outlasts the visibility timeout."""
        function = _find_guarded(vars(cls).get("run"))
        if function is None:
            raise ConfigurationError(f"{cls.name} has the base OnceTask, but its function is not under @once")
        transport = str(app.conf.broker_url or "").partition(":")[0].partition("+")[0]
        options = app.conf.broker_transport_options or {}
        visibility_s = options.get("visibility_timeout", DEFAULT_VISIBILITY_TIMEOUT_S.get(transport))
        lease_us = function.policy.lease_us
        if visibility_s is not None and lease_us >= visibility_s * 1_000_000:
            raise ConfigurationError(
                f"{cls.name} has a lease of {span_text(lease_us)}, and the broker delivers a task again after "
                f"{span_text(round(visibility_s * 1e6))} (visibility_timeout): a killed worker's task would come back "
                "before its lease is over; shorten lease=, which a heartbeat renews, or raise the visibility timeout"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.run(*args, **kwargs)
        except EffectOnceError as error:
            outcome = decide_delivery(error, attempt=self._redeliveries + 1)
            if isinstance(outcome, Ack):
                log.warning("task %s: %s", show(self.name), error)
                return None
            if isinstance(outcome, Redeliver) and not self.request.is_eager:  # an eager task has no broker
                self._retry_uncounted(outcome)
            raise

    @property
    def _redeliveries(self) -> int:
        """How often this task was retried without being counted by Celery."""
        return int((self.request.headers or {}).get(REDELIVERIES_HEADER, 0))

    def _retry_uncounted(self, outcome: Redeliver) -> NoReturn:
        """Let Celery deliver the task again. `retry` counts an attempt, but the task did not run: take it back
        first."""
        log_outcome(self.name, outcome)
        self.request.retries -= 1
        try:
            headers = {**(self.request.headers or {}), REDELIVERIES_HEADER: self._redeliveries + 1}
            raise self.retry(exc=outcome.error, countdown=outcome.after, headers=headers) from outcome.error
        except celery.exceptions.Reject as unsent:
            # The broker did not accept the retry. Celery would drop the message, which it still holds: requeue it.
            raise celery.exceptions.Reject(unsent.reason, requeue=True) from unsent


def _find_guarded(function: Any) -> Guarded[..., Any] | None:
    """Find the function under `once`, also below what Celery has wrapped it in (``pydantic=True``)."""
    if isinstance(function, staticmethod):
        function = function.__func__
    while function is not None and not isinstance(function, Guarded):
        function = getattr(function, "__wrapped__", None)
    return function
