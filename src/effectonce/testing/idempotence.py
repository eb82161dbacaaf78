"""`assert_idempotent`: a test that a handler has its effect once, however its message is delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from effectonce.store import Store

from .trials import IdempotenceTrials, Report


def assert_idempotent(
    handler: Callable[..., Any],
    *args: Any,
    effects: Callable[[], int],
    store: Store | None = None,
    reset: Callable[[], object] | None = None,
    strict: bool = False,
    **kwargs: Any,
) -> Report:
    """Deliver ``handler(*args, **kwargs)`` in every way that a queue may. Raises `AssertionError` with what went wrong.

    It is delivered twice, five times at once, and an hour later; made to raise, killed, and cut off from its store
    at each of its steps, then delivered again. ``effects()`` is read before and after: however often it was
    delivered, the effect of one clean delivery must be there, once.

    - The store of a guarded function, and ``store`` if the handler uses one inside, is replaced by one in memory.
    - Each trial needs a world in which the operation is new. A `Message` gets a new id each time; where the handler
      keeps records of its own, ``reset`` clears them.
    - In mode L an effect may repeat when an attempt ends without a recorded success, and in mode S concurrent
      duplicates may both run: such trials are in the report's ``windows``; with ``strict`` they fail.

    Works on any handler, guarded or not. Async ones run in an event loop of their own; inside a running one use
    ``await aassert_idempotent(…)``.
    """
    trials = IdempotenceTrials(handler, args, kwargs, effects, store=store, reset=reset, strict=strict)
    return _require_passed(trials.run_blocking())


async def aassert_idempotent(
    handler: Callable[..., Any],
    *args: Any,
    effects: Callable[[], int],
    store: Store | None = None,
    reset: Callable[[], object] | None = None,
    strict: bool = False,
    **kwargs: Any,
) -> Report:
    """`assert_idempotent`, in a running event loop."""
    trials = IdempotenceTrials(handler, args, kwargs, effects, store=store, reset=reset, strict=strict)
    return _require_passed(await trials.run())


def _require_passed(report: Report) -> Report:
    if report.failures:
        raise AssertionError(str(report))
    return report
