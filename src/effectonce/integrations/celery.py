"""Celery: `guard_tasks` guards every task of an app, and `OnceTask` is the base of a single one under `once`. Both
settle duplicates as a broker expects, without losing one.

    app = Celery("shop")
    guard_tasks(app, store)  # before the tasks are defined

    @app.task(base=OnceTask)  # or this, where only some are to be guarded
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
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn
from weakref import WeakSet

import celery
import celery.exceptions
from celery import Celery, Task

from effectonce.core.delivery_outcome import Ack, Redeliver, decide_delivery, log_outcome
from effectonce.core.failure_log import caller_logs_failures
from effectonce.errors import ConfigurationError, EffectOnceError, show
from effectonce.guard.once import find_guarded
from effectonce.guard.task_guard import check_defaults, guard_task
from effectonce.store import Store, require_store
from effectonce.values.durations import span_text

log = logging.getLogger("effectonce")

#: The header that counts the retries that Celery does not.
REDELIVERIES_HEADER: Final = "effectonce_redeliveries"

#: By transport: seconds until an unacked message is delivered again, unless ``visibility_timeout`` is set.
DEFAULT_VISIBILITY_TIMEOUT_S: Final = {"redis": 3600, "rediss": 3600, "sentinel": 3600, "sqs": 1800}

_guarded_apps: WeakSet[Celery] = WeakSet()


class OnceTask(Task):  # type: ignore[misc]  # Celery ships no types
    """The base of tasks whose function is under `once`; see the module."""

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    dont_autoretry_for = (EffectOnceError,)  # handled below; `autoretry_for` would count and lose them

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Raise `ConfigurationError` if the guard is missing, or its lease outlasts the visibility timeout."""
        function = find_guarded(vars(cls).get("run"))
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
        token = caller_logs_failures.set(True)  # Celery does, or `_retry_uncounted`
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
        finally:
            caller_logs_failures.reset(token)

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


def guard_tasks(app: Celery, store: Store, **defaults: Any) -> None:
    """Guard every task that is defined on ``app`` from now on, `celery.shared_task` too: each gets the base `OnceTask`,
    and its function is put under `once`, with the task's name as its scope.

    ``defaults`` are options of `once` for all of them. Without ``key=`` the key is the task's id, which is the same for
    every delivery and every retry of one message; a producer that sends a task twice gives it two ids. A task that is
    called like a function has no id, and runs unguarded then.

    For a single task: ``@app.task(once="payment_id")`` names its key, ``once={…}`` its options, and ``once=False``
    leaves it alone. One whose function is under `once` keeps that guard. Raises `ConfigurationError` where tasks were
    defined before, and for a task with a class of its own that is not guarded.
    """
    require_store(store, "guard_tasks(app, {}, …)")
    check_defaults(store, defaults)
    if app in _guarded_apps:
        raise ConfigurationError(
            "guard_tasks was called for this app before, and a second call would guard the tasks with once=False; call "
            "it once, right after app = Celery(…)"
        )
    if app._pending or not all(map(_is_builtin, app._tasks)):
        raise ConfigurationError(
            "tasks of this app were defined before guard_tasks(app, store), so they would run unguarded; write that "
            "line right after app = Celery(…)"
        )
    create_task, register_task = app._task_from_fun, app.register_task
    guarded_functions: dict[tuple[str, Any], Any] = {}  # Celery may create a task again, and knows it by its function

    def create_guarded_task(
        function: Callable[..., Any], name: str | None = None, base: type[Task] | None = None, **options: Any
    ) -> Task:
        name = name or app.gen_task_name(function.__name__, function.__module__)
        requested = options.pop("once", True)
        if requested is False or _is_builtin(name):
            return create_task(function, name=name, base=base, **options)
        if (name, function) not in guarded_functions:
            read_task_id = partial(_read_task_id, name)
            guarded_functions[name, function] = guard_task(
                function, requested, store=store, scope=name, read_message_id=read_task_id, defaults=defaults
            )
        base = _add_once_task(base or app.Task)
        return create_task(guarded_functions[name, function], name=name, base=base, **options)

    def register_guarded_task(task: Any, **options: Any) -> Task:
        if find_guarded(getattr(task, "run", None)) is None and getattr(task, "once", True) is not False:
            raise ConfigurationError(
                f"guard_tasks cannot guard {show(repr(task))}, which has a class of its own: put its run under "
                "@eo.once(store, scope=…, key=…) and derive it from OnceTask, or write `once = False` in the class"
            )
        return register_task(task, **options)

    app._task_from_fun, app.register_task = create_guarded_task, register_guarded_task
    _guarded_apps.add(app)


def _is_builtin(name: str) -> bool:
    """Whether the task of this name is one of Celery's own."""
    return name.startswith("celery.")


def _add_once_task(base: type[Task]) -> type[Task]:
    """Return ``base`` with `OnceTask` among its own bases."""
    if issubclass(base, OnceTask):
        return base
    return type(base.__name__, (base, OnceTask), {"abstract": True, "__module__": base.__module__})


def _read_task_id(task_name: str) -> str | None:
    """Return the id of the task that a worker runs now; None if that is another one, which calls this like a
    function."""
    task = celery.current_task
    return task.request.id if task and task.name == task_name else None
