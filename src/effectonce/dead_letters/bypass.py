"""`bypass_external_effects`: functions that do nothing while a message is redriven with ``bypass_effects``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from effectonce.core.guarded_call.run import current_run
from effectonce.guard.introspection import is_async

P = ParamSpec("P")
R = TypeVar("R")


@overload
def bypass_external_effects(
    function: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
@overload
def bypass_external_effects(function: Callable[P, R]) -> Callable[P, R | None]: ...
def bypass_external_effects(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``function`` do nothing and return None if the message was redriven with ``bypass_effects``.

    Use it for external effects (a mail, a charge) that have happened before, while the redrive rebuilds the handler's
    own state: ``bypass_external_effects(send_mail)(order)``, or as a decorator.
    """

    def is_bypassing() -> bool:
        run = current_run.get()
        return run is not None and run.active and run.bypassing

    if is_async(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return None if is_bypassing() else await function(*args, **kwargs)

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return None if is_bypassing() else function(*args, **kwargs)

    return call
