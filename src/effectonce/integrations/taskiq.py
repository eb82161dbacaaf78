"""taskiq: a middleware that guards every task, and sends one again later if it may not run now.

    broker = RedisStreamBroker(url).with_middlewares(IdempotencyMiddleware(store))

    @broker.task(once="payment_id")                      # its key; without it, the task's id
    async def charge(payment_id: str, amount: int) -> str: ...

``IdempotencyMiddleware()`` without a store leaves the guards to you: ``@eo.once(store, key=…)`` below ``@broker.task``.

A duplicate of a finished task returns the first one's result. One that arrives
while the first runs, or while the store does not answer, has failed for taskiq and would be lost: this middleware sends
it again, under the same task id, after the time that the error says.

The broker decides when the tasks of a killed worker are delivered again: taskiq-redis does so after ``idle_timeout``
(ten minutes), and looks for them only after a new task has arrived.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from taskiq import NoResultError, TaskiqMiddleware
from taskiq.kicker import AsyncKicker

from effectonce.core.delivery_outcome import Redeliver, decide_delivery
from effectonce.core.failure_log import caller_logs_failures
from effectonce.errors import ConfigurationError, EffectOnceError
from effectonce.guard.task_guard import check_defaults, guard_task
from effectonce.store import Store, require_store

#: The label that counts how often a task was sent again.
REDELIVERIES_LABEL: Final = "effectonce_again"

_current_message: ContextVar[Any] = ContextVar("effectonce_taskiq_message", default=None)


class IdempotencyMiddleware(TaskiqMiddleware):
    """Puts every task of its broker under `once`, with the task's name as its scope. Sends a task again while another
    delivery runs it, or while the store does not answer.

    ``defaults`` are options of `once` for all tasks. Without ``key=`` the key is the task's id, the same for every
    delivery of one message. For a single task: ``@broker.task(once="payment_id")`` names its key, and ``once=False``
    leaves it alone. One whose function is under `once` keeps that guard. Without ``store`` only those are guarded.

    The guard stands before a task's function in the worker. Code that calls the function without a message, and without
    another key, runs it unguarded.

    ``longest`` bounds a single pause, in seconds. The middleware waits itself, since not every broker can delay a
    message: if this process is killed meanwhile, the message is delivered again as long as it is not acked (taskiq's
    ``ack_type`` at ``when_executed`` or ``when_saved``).
    """

    def __init__(self, store: Store | None = None, *, longest: float = 5.0, **defaults: Any) -> None:
        super().__init__()
        if store is not None:
            require_store(store, "IdempotencyMiddleware({}, …)")
            check_defaults(store, defaults)
        elif defaults:
            raise ConfigurationError(
                f"IdempotencyMiddleware({next(iter(defaults))}=…) has options for guards and no store to guard with; "
                "write IdempotencyMiddleware(store, …)"
            )
        self._store = store
        self._longest = longest
        self._defaults = defaults

    def startup(self) -> None:
        """Guard the tasks that are there. Those that come later are guarded when they are first delivered."""
        for name in self.broker.get_all_tasks():
            self._guard(name)

    def pre_execute(self, message: Any) -> Any:
        self._guard(message.task_name)
        _current_message.set(message)
        caller_logs_failures.set(True)  # taskiq does
        return message

    def _guard(self, task_name: str) -> None:
        task = self.broker.find_task(task_name)
        if self._store is None or task is None or task.labels.get("once") is False:
            return
        task.original_func = guard_task(
            task.original_func,
            task.labels.get("once", True),
            store=self._store,
            scope=task_name,
            read_message_id=partial(_read_task_id, task_name),
            defaults=self._defaults,
        )

    async def on_error(self, message: Any, result: Any, exception: BaseException) -> None:
        if not isinstance(exception, EffectOnceError):
            return
        redeliveries = int(message.labels.get(REDELIVERIES_LABEL, 0))
        try:
            outcome = decide_delivery(exception, attempt=redeliveries + 1)
        except ConfigurationError:  # the program is wrong: taskiq reports it as a failed task
            return
        if not isinstance(outcome, Redeliver):
            return
        await asyncio.sleep(min(outcome.after, self._longest))
        labels = {**message.labels, REDELIVERIES_LABEL: redeliveries + 1}
        kicker: AsyncKicker[Any, Any] = AsyncKicker(task_name=message.task_name, broker=self.broker, labels=labels)
        await kicker.with_task_id(message.task_id).kiq(*message.args, **message.kwargs)
        result.error = NoResultError()  # the next delivery has the result


def _read_task_id(task_name: str) -> str | None:
    """Return the id of the task that is run now; None if that is another one, which calls this like a function."""
    message = _current_message.get()
    return message.task_id if message is not None and message.task_name == task_name else None
