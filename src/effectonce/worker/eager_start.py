"""`start_eagerly`: a coroutine begins at once, in a context of its own, and needs no task unless it waits.

Python 3.12 has eager tasks, which do the same. This works on 3.11, too, and makes no task even for a coroutine that
waits: the task that awaits the rest runs it.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Coroutine, Generator
from contextvars import Context
from typing import Any


def start_eagerly(coroutine: Coroutine[Any, Any, Any], context: Context) -> Awaitable[None] | None:
    """Run ``coroutine`` in ``context`` until it waits for the first time. Returns the rest of it, to be awaited, which
    runs in ``context``, too; None: it has ended already. What it raises is raised, here or from the rest."""
    try:
        pending = context.run(coroutine.send, None)
    except StopIteration:
        return None
    return _await_rest(coroutine, context, pending)


@types.coroutine
def _await_rest(coroutine: Coroutine[Any, Any, Any], context: Context, pending: Any) -> Generator[Any, Any, None]:
    """Await the rest of ``coroutine``, which waits for ``pending``: what ``yield from`` does, but in ``context``."""
    try:
        while True:
            try:
                sent = yield pending
            except BaseException as error:
                pending = context.run(coroutine.throw, error)
            else:
                pending = context.run(coroutine.send, sent)
    except StopIteration:
        return
