"""`assert_idempotent`: a test that a handler has its effect once, however its message is delivered."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from effectonce.errors import ConfigurationError
from effectonce.guard.introspection import name_of
from effectonce.message import Message
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .http_subject import HttpRequest, HttpSubject, is_asgi_app
from .subjects import CelerySubject, CeleryTask, FunctionSubject, Subject
from .trials import IdempotenceTrials, Report
from .worker_subject import WorkerSubject, find_route, only_queue


def make_subject(handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any], store: Store | None = None) -> Subject:
    """Find out what ``handler`` is, from itself and its arguments. Raises `ConfigurationError` for what cannot be
    tried."""
    if args and isinstance(args[0], HttpRequest):
        if not is_asgi_app(handler):
            raise ConfigurationError(f"{name_of(handler)} is not an ASGI application: give the one that has the route")
        return HttpSubject(handler, args[0])
    if isinstance(handler, Worker):
        if len(args) != 1 or not isinstance(args[0], Message) or not kwargs.keys() <= {"queue"}:
            raise ConfigurationError(
                f"{handler!r} is tried with one message: give it an eo.Message(data=…), and queue= where it has several"
            )
        return WorkerSubject(handler, kwargs.get("queue") or only_queue(handler), args[0])
    if isinstance(handler, CeleryTask):
        return CelerySubject(handler, args, kwargs, store)
    if not callable(handler):
        raise ConfigurationError(
            f"{name_of(handler)} is a {type(handler).__name__}, which cannot be tried: give a function, a worker or "
            "its handler, a Celery task, or an ASGI application with an HttpRequest"
        )
    found = find_route(handler) if len(args) == 1 and isinstance(args[0], Message) and not kwargs else None
    if found is None:
        return FunctionSubject(handler, args, kwargs, store)
    worker, route = found
    if route.type not in (None, args[0].type):
        raise ConfigurationError(
            f"{name_of(handler)} handles messages of type {route.type!r}, and was given one of type {args[0].type!r}"
        )
    return WorkerSubject(worker, route.queue, args[0])


def assert_idempotent(
    handler: Any,
    *args: Any,
    effects: Callable[[], int],
    store: Store | None = None,
    reset: Callable[[], object] | None = None,
    strict: bool = False,
    keep_stores: Collection[Store] = (),
    **kwargs: Any,
) -> Report:
    """Deliver ``handler(*args, **kwargs)`` in every way that a queue may. Raises `AssertionError` with what went wrong.

    It is delivered twice, five times at once, and an hour later; made to raise, killed, and cut off from its store
    at each of its steps, then delivered again. ``effects()`` is read before and after: however often it was
    delivered, the effect of one clean delivery must be there, once.

    ``handler`` is a function, guarded or not; or one of these, which are run as they are in production:

    - a handler of a `Worker`, with its message: the worker takes it from a broker in memory, and runs, records and
      settles it. With an inbox that is in your database, on connections of ``connect=``. A worker itself may be given,
      with ``queue=`` where it has several.
    - a Celery task, with its arguments: Celery runs it, without a broker, and it is redelivered as ``acks_late`` says.
    - an ASGI application (FastAPI, Starlette), with an `HttpRequest`: as a client that retries sends it.

    What is replaced, and what has to be new in each trial:

    - The store of a guarded function, and ``store`` if the handler uses one inside, is replaced by one in memory. For
      workers, tasks and applications every store of the process is. Those of ``keep_stores`` stay, for intents that the
      handler completes in its own transaction (`Sent.complete`): their records are forgotten after each trial, and the
      leases of killed deliveries are ended.
    - Each trial needs a world in which the operation is new. A `Message` gets a new id each time; where the handler
      keeps records of its own, ``reset`` clears them.
    - In mode L an effect may repeat when an attempt ends without a recorded success, and in mode S concurrent
      duplicates may both run: such trials are in the report's ``windows``; with ``strict`` they fail.

    Async handlers, workers and applications run in an event loop of their own; inside a running one use
    ``await aassert_idempotent(…)``.
    """
    subject = make_subject(handler, args, kwargs, store)
    trials = IdempotenceTrials(subject, effects, reset=reset, strict=strict, keep_stores=keep_stores)
    return _require_passed(trials.run_blocking())


async def aassert_idempotent(
    handler: Any,
    *args: Any,
    effects: Callable[[], int],
    store: Store | None = None,
    reset: Callable[[], object] | None = None,
    strict: bool = False,
    keep_stores: Collection[Store] = (),
    **kwargs: Any,
) -> Report:
    """`assert_idempotent`, in a running event loop."""
    subject = make_subject(handler, args, kwargs, store)
    trials = IdempotenceTrials(subject, effects, reset=reset, strict=strict, keep_stores=keep_stores)
    return _require_passed(await trials.run())


def _require_passed(report: Report) -> Report:
    if report.failures:
        raise AssertionError(str(report))
    return report
