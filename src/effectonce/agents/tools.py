"""`tool_once`: a tool of an LLM agent (MCP or other) whose same call takes effect once, however often it is planned.

    @server.tool(annotations=ToolAnnotations(idempotentHint=True))
    @tool_once(store, per="task_id")
    def send_invoice(task_id: str, customer: str, amount: int) -> str: ...

A model that is asked again, or loses track, plans a call that it has already made, under a new id. So the id of a call
does not tell whether it repeats another, and the arguments are the key instead. Two intended calls with the same
arguments would then count as one. That is why ``per`` is required: it names the task or conversation that tells them
apart.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from effectonce.errors import ConfigurationError
from effectonce.guard.introspection import name_of
from effectonce.guard.once import GLOBAL, Guarded, once
from effectonce.keys import composite, content_hash
from effectonce.store import Store

P = ParamSpec("P")
R = TypeVar("R")

#: Parameters that frameworks fill in. They are not part of the call, unless their type is a plain one.
_INJECTED_PARAMETERS: Final = ("ctx", "context", "run_context", "session")
_PLAIN_ANNOTATION: Final = re.compile(r"(Optional\[)?(str|int|float|bool|bytes|dict|list|tuple)\b")


def tool_once(
    store: Store, *, per: str, ignore: tuple[str, ...] | None = None, **options: Any
) -> Callable[[Callable[P, R]], Guarded[P, R]]:
    """Guard a tool with `once`, with its arguments as the key.

    ``per`` is a path to the task, conversation or user that the call belongs to, or `GLOBAL`. ``ignore`` names
    parameters that are not part of the call; by default those that frameworks fill in (a ``ctx`` or ``context`` that
    is not a plain value). ``options`` are those of `once`: with ``on_error="doubt"``, a tool whose effect may have
    happened is not simply called again.
    """
    if "key" in options:
        raise ConfigurationError("tool_once makes the key from the arguments; to choose it yourself, use once")

    def decorate(function: Callable[P, R]) -> Guarded[P, R]:
        root = per.partition(".")[0]
        parameters = inspect.signature(function).parameters
        ignored = ignore
        if ignored is None:
            ignored = tuple(name for name in _INJECTED_PARAMETERS if not _is_plain(parameters.get(name)))
        names = [name for name in parameters if name not in (*ignored, "self", root)]
        if not names and per == GLOBAL:
            raise ConfigurationError(
                f"{name_of(function)} takes no arguments, so all of its calls would share one key; use once(key=…)"
            )
        parts: list[Any] = [] if per == GLOBAL else [per]
        if names:
            parts.append(content_hash(*names))
        return once(store, key=composite(*parts), **options)(function)

    return decorate


def _is_plain(parameter: inspect.Parameter | None) -> bool:
    """Tell whether a parameter's annotation, which may be unevaluated, is a plain type: such a value is the model's."""
    annotation = None if parameter is None else parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "") or str(annotation)
    return _PLAIN_ANNOTATION.match(text) is not None
