"""Celery: a task base for guarded functions, which tells a duplicate what to do.

    @app.task(base=OnceTask)
    @eo.once(store, key="payment_id")
    def charge(payment_id: str, amount: int) -> str: ...

A duplicate of a finished task succeeds with the first one's result, so that chains, groups and callbacks go on. One
that arrives while the first runs, or while the store does not answer, is retried later, without using up
``max_retries``; ``autoretry_for`` is for what the function itself raises. Models are passed and returned with Celery's
own ``pydantic=True``. A task is acked after it ran (``acks_late``), and comes again when its worker was killed
(``reject_on_worker_lost``). A task that is revoked or runs out of its time is over for Celery; its record is released,
or lapses where the process was killed. ``self.retry()`` is an exception like any other: under ``on_error="doubt"`` the
retry finds the task in doubt.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Task
from celery.exceptions import Reject

from effectonce.errors import ConfigurationError, EffectOnceError, ResultNotStored, show
from effectonce.guard.once import Guarded
from effectonce.values.durations import readable

from .redelivery import COMES_BACK, pause

log = logging.getLogger("effectonce")

#: How long a transport keeps a message from others before it delivers it again, in seconds, unless told otherwise.
VISIBILITY = {"redis": 3600, "rediss": 3600, "sentinel": 3600, "sqs": 1800}


class OnceTask(Task):  # type: ignore[misc]  # Celery ships no types
    """The base of tasks whose function is under `once`; see the module."""

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    dont_autoretry_for = (EffectOnceError,)  # what they mean is known here; `autoretry_for` would count and lose them

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """`ConfigurationError` where the guard is missing, or its lease could outlast the broker's patience."""
        function = _guarded(vars(cls).get("run"))
        if function is None:
            raise ConfigurationError(f"{cls.name} has the base OnceTask, but its function is not under @once")
        transport = str(app.conf.broker_url or "").partition(":")[0].partition("+")[0]
        options = app.conf.broker_transport_options or {}
        visible = options.get("visibility_timeout", VISIBILITY.get(transport))
        lease = function.policy.lease
        if visible is not None and lease >= visible * 1_000_000:
            raise ConfigurationError(
                f"{cls.name} has a lease of {readable(lease)}, and the broker delivers a task again after "
                f"{readable(round(visible * 1e6))} (visibility_timeout): a killed worker's task would come back before "
                "its lease is over; shorten lease=, which a heartbeat renews, or raise the visibility timeout"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.run(*args, **kwargs)
        except COMES_BACK as error:
            if self.request.is_eager:  # which knows no later
                raise
            self.request.retries -= 1  # not a failure of its own: it is told to come back, and `retry` counts that
            try:
                raise self.retry(exc=error, countdown=pause(error)) from error
            except Reject as unsent:  # the broker did not take it: Celery would drop the message that is still there
                raise Reject(unsent.reason, requeue=True) from unsent
        except ResultNotStored as error:
            log.warning("task %s: %s", show(self.name), error)
            return None


def _guarded(function: Any) -> Guarded[..., Any] | None:
    """What is under `once`, also below what Celery has wrapped it in (``pydantic=True``)."""
    if isinstance(function, staticmethod):
        function = function.__func__
    while function is not None and not isinstance(function, Guarded):
        function = getattr(function, "__wrapped__", None)
    return function
