"""Tools of LLM agents, MCP ones among them: the same call has its effect once, however often the model plans it.

    @server.tool(annotations=ToolAnnotations(idempotentHint=True))
    @tool_once(store, per="task_id")
    def send_invoice(task_id: str, customer: str, amount: int) -> str: ...

A model that is asked again, or loses track, plans a call that it has made already, and that call gets a new id: the id
cannot tell a repetition from a new wish. So the arguments are the key. Two honest calls with the same arguments are
then one, which is why ``per`` is not optional: it names what keeps them apart, the task or the conversation.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from effectonce.errors import ConfigurationError
from effectonce.guard.introspection import name_of
from effectonce.guard.once import GLOBAL, Guarded, once
from effectonce.keys import composite, content_hash
from effectonce.store import Store

P = ParamSpec("P")
R = TypeVar("R")

#: Parameters that frameworks fill in, and that say nothing about the call; unless they are plain values.
INJECTED = ("ctx", "context", "run_context", "session")
_PLAIN = re.compile(r"(Optional\[)?(str|int|float|bool|bytes|dict|list|tuple)\b")


def tool_once(
    store: Store, *, per: str, ignore: tuple[str, ...] | None = None, **options: Any
) -> Callable[[Callable[P, R]], Guarded[P, R]]:
    """`once`, with the tool's arguments as its key.

    ``per`` is a path to the task, conversation or user that the call belongs to, or `GLOBAL`. ``ignore`` names
    parameters that are no part of the call; by default what frameworks fill in (a ``ctx`` or ``context`` that is no
    plain value). ``options`` are those of `once`: with ``on_error="doubt"``, a tool whose effect may have happened is
    not simply called again.
    """
    if "key" in options:
        raise ConfigurationError("tool_once makes the key of the arguments; to choose it yourself, use once")

    def decorate(function: Callable[P, R]) -> Guarded[P, R]:
        root = per.partition(".")[0]
        parameters = inspect.signature(function).parameters
        left_out = ignore if ignore is not None else [name for name in INJECTED if not _is_plain(parameters.get(name))]
        names = [name for name in parameters if name not in (*left_out, "self", root)]
        if not names and per == GLOBAL:
            raise ConfigurationError(f"{name_of(function)} has no arguments to tell its calls apart by")
        hashed = content_hash(*names) if names else None
        parts = [part for part in (None if per == GLOBAL else per, hashed) if part is not None]
        return once(store, key=composite(*parts), **options)(function)

    return decorate


def _is_plain(parameter: inspect.Parameter | None) -> bool:
    """Whether the model itself gives it, by its annotation, which may be unevaluated."""
    told = None if parameter is None else parameter.annotation
    return _PLAIN.match(told if isinstance(told, str) else getattr(told, "__name__", "") or str(told)) is not None
