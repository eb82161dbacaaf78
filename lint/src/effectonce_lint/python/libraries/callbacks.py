"""Calls that call: what is handed to them runs, now, later or on another thread."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Function, Val
from effectonce_lint.word_lists import words

from . import background_work

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, Calls

_WAITS = words(
    "asyncio.create_task asyncio.ensure_future asyncio.gather asyncio.wait_for asyncio.shield asyncio.run"
    " asyncio.wait uvloop.run"
)
"""Given what a call gives: the call itself was walked through when it was made."""
_WAIT_METHODS = words("run_until_complete run_coroutine_threadsafe")
_ADAPTS = words("asgiref.sync.sync_to_async asgiref.sync.async_to_sync")
#: Where the function stands among the arguments; what follows it are its own. By dotted name, and by method.
_RUNS = {
    "asyncio.to_thread": 0,
    "anyio.to_thread.run_sync": 0,
    "anyio.run": 0,
    "trio.run": 0,
    "starlette.concurrency.run_in_threadpool": 0,
    "fastapi.concurrency.run_in_threadpool": 0,
    "builtins.map": 0,
    "gevent.spawn": 0,
    "eventlet.spawn": 0,
    "threading.Timer": 1,
    "starlette.background.BackgroundTask": 0,
}
_AFTER = words("starlette.background.BackgroundTask")
"""Of those: what runs when the consumer has answered."""
_RUN_METHODS = {
    **dict.fromkeys(
        words("submit apply_async apply map starmap imap imap_unordered spawn start_soon run_sync call_soon add_task"),
        0,
    ),
    **dict.fromkeys(words("add_callback_threadsafe call_soon_threadsafe create_task"), 0),
    "run_in_executor": 1,
    "call_later": 1,
}
_MAPS = words("map starmap imap imap_unordered")
"""What calls the function for each of what it is given."""
_THREADS = words("run_in_executor run_in_threadpool submit start_soon run_sync add_task")
_RETRYING = words("Retrying AsyncRetrying retry_context RetryingCaller")


def called(walk: Calls, call: Call) -> Val | None:
    ref, name = call.ref, call.name
    if call.args and (ref in _WAITS or ref in _ADAPTS or name in _WAIT_METHODS):
        return call.args[0]
    if ref in ("threading.Thread", "multiprocessing.Process"):
        return _thread(walk, call)
    if name == "start" and call.receiver.instance is not None and call.target.function is None:
        return _started(walk, call)
    if name in ("on_commit", "run_after_commit", "after_commit") and call.args:
        return _after_commit(walk, call)
    if ref.partition(".")[0] in ("tenacity", "stamina") and name in _RETRYING:
        return Val(text=f"{name}()", tag="retrying")
    if "retrying" in (call.target.tag, call.tag) or ref == "retry.api.retry_call":
        return _retried(walk, call)
    own = call.target.function is not None or call.receiver.function is not None
    position = _RUNS.get(ref, -1 if own else _RUN_METHODS.get(name, -1))
    function = _function(call, position)
    if function is not None:
        given = call.args[position + 1 :]
        if name in _MAPS:
            given = tuple(walk.element(each, call.node) for each in given)
        elif call.tag == "executor" and name in ("apply", "apply_async"):  # a pool of processes takes them in a tuple
            given = (call.argument(1, "args") or Val()).items
        start = len(walk.trace.ops)
        result = walk.invoke(function, given, {}, call.node)
        if ref in _AFTER:
            background_work.mark(walk, start, call.node)
        return result
    if 0 <= position < len(call.args) and (call.args[position].ref or call.args[position].base is not None):
        function_node, *given_nodes = call.node.args[position:]
        node = ast.copy_location(ast.Call(func=function_node, args=given_nodes, keywords=[]), call.node)
        handed = replace(call, node=node, target=call.args[position], args=call.args[position + 1 :])  # of a library
        return walk.called(handed) if ref in _RUNS or name in _THREADS else None
    return None


def _function(call: Call, position: int) -> Function | None:
    return call.args[position].function if 0 <= position < len(call.args) else None


def _thread(walk: Calls, call: Call) -> Val | None:
    target = call.keywords.get("target", Val()).function
    return walk.invoke(target, call.keywords.get("args", Val()).items, {}, call.node) if target is not None else None


def _started(walk: Calls, call: Call) -> Val | None:
    """An object that is a thread or a process of its own: starting it runs it."""
    instance = call.receiver.instance
    assert instance is not None
    if not {"threading.Thread", "multiprocessing.Process"} & set(walk.ancestry(instance.cls)):
        return None
    run = walk.member(call.receiver, instance.cls, "run")
    return walk.invoke(run.function, (), {}, call.node) if run is not None and run.function is not None else None


def _retried(walk: Calls, call: Call) -> Val | None:
    function = _function(call, 0)
    if function is None:
        return None
    walk.retrying += 1
    try:
        return walk.invoke(function, call.args[1:], call.keywords, call.node)
    finally:
        walk.retrying -= 1


def _after_commit(walk: Calls, call: Call) -> Val:
    function = _function(call, 0)
    if function is not None:
        outer, walk.transactions = walk.transactions, []
        walk.deferred += 1
        walk.invoke(function, (), {}, call.node)
        walk.deferred -= 1
        walk.transactions = outer
    return Val(literal=None)
