"""Calls that call: what is handed to them runs, now, later or on another thread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce.lint.python.values import Val

if TYPE_CHECKING:
    from effectonce.lint.python.calls import Call, Calls

#: ref: the position of the function among the arguments; what follows it are its own.
_RUNS = {
    "asyncio.to_thread": 0,
    "anyio.to_thread.run_sync": 0,
    "asgiref.sync.sync_to_async": 0,
    "asgiref.sync.async_to_sync": 0,
    "starlette.concurrency.run_in_threadpool": 0,
    "fastapi.concurrency.run_in_threadpool": 0,
    "builtins.map": 0,
    "gevent.spawn": 0,
    "eventlet.spawn": 0,
    "retry.api.retry_call": 0,
    "django.db.close_old_connections": 9,
    "threading.Timer": 1,
}
_GIVES_BACK = {"asgiref.sync.sync_to_async", "asgiref.sync.async_to_sync"}
_WAITS = (
    "asyncio.create_task",
    "asyncio.ensure_future",
    "asyncio.gather",
    "asyncio.wait_for",
    "asyncio.shield",
    "asyncio.run",
    "anyio.run",
    "trio.run",
    "uvloop.run",
    "asyncio.wait",
)


def called(walk: Calls, call: Call) -> Val | None:
    ref, name = call.ref, call.name
    if name in ("run_until_complete", "run_coroutine_threadsafe") and call.args:
        return call.args[0]
    if ref in _WAITS:
        if ref in ("anyio.run", "trio.run") and call.args and call.args[0].function is not None:
            return walk.invoke(call.args[0].function, call.args[1:], {}, call.node)
        return call.args[0] if call.args else Val()
    if ref in _RUNS:
        position = _RUNS[ref]
        if position < len(call.args) and (function := call.args[position].function) is not None:
            if ref in _GIVES_BACK:
                return call.args[position]
            return walk.invoke(function, call.args[position + 1 :], call.keywords, call.node)
        return None
    if name == "run_in_executor" and len(call.args) > 1 and call.args[1].function is not None:
        return walk.invoke(call.args[1].function, call.args[2:], {}, call.node)
    if (
        name
        in (
            "submit",
            "apply_async",
            "apply",
            "map",
            "starmap",
            "spawn",
            "start_soon",
            "add_callback_threadsafe",
            "run_sync",
            "call_soon",
            "call_later",
            "call_soon_threadsafe",
            "create_task",
            "add_task",
        )
        and call.args
    ):
        position = 1 if name == "call_later" else 0
        if (
            position < len(call.args)
            and (function := call.args[position].function) is not None
            and call.target.function is None
            and call.receiver.function is None
        ):
            return walk.invoke(function, call.args[position + 1 :], {}, call.node)
    if ref in ("threading.Thread", "multiprocessing.Process") and "target" in call.keywords:
        target = call.keywords["target"]
        if target.function is not None:
            given = call.keywords.get("args")
            return walk.invoke(target.function, given.items if given is not None else (), {}, call.node)
    if name in ("on_commit", "run_after_commit", "after_commit") and call.args:
        return _after_commit(walk, call)
    if _is_retrying(call) and call.args and call.args[0].function is not None:
        walk.retrying += 1
        try:
            return walk.invoke(call.args[0].function, call.args[1:], call.keywords, call.node)
        finally:
            walk.retrying -= 1
    if call.ref.partition(".")[0] in ("tenacity", "stamina") and name in (
        "Retrying",
        "AsyncRetrying",
        "retry_context",
        "RetryingCaller",
    ):
        return Val(text=f"{name}()", tag="retrying")
    return None


def _after_commit(walk: Calls, call: Call) -> Val:
    function = call.args[0].function
    if function is not None:
        outer, walk.transactions = walk.transactions, []
        walk.deferred += 1
        walk.invoke(function, (), {}, call.node)
        walk.deferred -= 1
        walk.transactions = outer
    elif call.args[0].attr in ("delay", "send", "apply_async"):
        pass
    return Val(literal=None)


def _is_retrying(call: Call) -> bool:
    return (
        call.target.tag == "retrying"
        or call.receiver.tag == "retrying"
        or call.ref in ("retry.api.retry_call", "tenacity.Retrying.call")
    )


def bound(value: Val, args: tuple[Val, ...]) -> Val:
    """``value`` with its first arguments given."""
    if value.function is None:
        return value
    return replace(value, function=replace(value.function, bound=(*value.function.bound, *args)))
