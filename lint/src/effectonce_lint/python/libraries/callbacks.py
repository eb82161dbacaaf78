"""Calls that run the function that they are passed: now, later or on another thread."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Function, Value
from effectonce_lint.word_lists import word_set

from . import background_work

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_WAIT_FUNCTIONS = word_set(
    "asyncio.create_task asyncio.ensure_future asyncio.gather asyncio.wait_for asyncio.shield asyncio.run"
    " asyncio.wait uvloop.run"
)
"""Functions that wait for coroutines. The walk has been through those already, where they were created."""
_WAIT_METHODS = word_set("run_until_complete run_coroutine_threadsafe")
_ADAPTERS = word_set("asgiref.sync.sync_to_async asgiref.sync.async_to_sync")
#: The position of the function among the arguments, by dotted name; the arguments behind it are the function's own.
_FUNCTION_POSITIONS = {
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
_AFTER_RESPONSE = word_set("starlette.background.BackgroundTask")
"""Those that run the function after the consumer has answered."""
#: The same by the name of a method.
_METHOD_POSITIONS = {
    **dict.fromkeys(
        word_set(
            "submit apply_async apply map starmap imap imap_unordered spawn start_soon run_sync call_soon add_task"
        ),
        0,
    ),
    **dict.fromkeys(word_set("add_callback_threadsafe call_soon_threadsafe create_task"), 0),
    "run_in_executor": 1,
    "call_later": 1,
}
_MAP_METHODS = word_set("map starmap imap imap_unordered")
"""Methods that call the function for each item of their argument."""
_THREAD_METHODS = word_set("run_in_executor run_in_threadpool submit start_soon run_sync add_task")
_RETRY_CLASSES = word_set("Retrying AsyncRetrying retry_context RetryingCaller")


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Walk through the function that ``call`` runs; None if it runs none."""
    for interpret in _INTERPRETERS:
        value = interpret(walk, call)
        if value is not None:
            return value
    return None


def _await_argument(walk: CallWalker, call: Call) -> Value | None:
    """`asyncio.gather(work(message))`: the walk was through the argument when it was evaluated."""
    is_wait = call.ref in _WAIT_FUNCTIONS or call.ref in _ADAPTERS or call.name in _WAIT_METHODS
    return call.args[0] if is_wait and call.args else None


def _make_retrying(walk: CallWalker, call: Call) -> Value | None:
    """`tenacity.Retrying(…)`, an object that retries the function that it is called with."""
    package = call.ref.partition(".")[0]
    is_retrying = package in ("tenacity", "stamina") and call.name in _RETRY_CLASSES
    return Value(text=f"{call.name}()", tag="retrying") if is_retrying else None


def _run_argument(walk: CallWalker, call: Call) -> Value | None:
    """`pool.submit(work, message)`: run the argument that is a function, with the arguments behind it."""
    is_in_project = call.target.function is not None or call.receiver.function is not None
    position = _FUNCTION_POSITIONS.get(call.ref)
    if position is None and not is_in_project:
        position = _METHOD_POSITIONS.get(call.name)
    if position is None:
        return None
    function = _function_argument(call, position)
    if function is None:
        return _run_library_function(walk, call, position)
    arguments = call.args[position + 1 :]
    if call.name in _MAP_METHODS:
        arguments = tuple(walk.element(argument, call.node) for argument in arguments)
    elif call.tag == "executor" and call.name in ("apply", "apply_async"):  # a pool of processes takes them in a tuple
        arguments = (call.argument(1, "args") or Value()).items
    start = len(walk.trace.ops)
    result = walk.invoke(function, arguments, {}, call.node)
    if call.ref in _AFTER_RESPONSE:
        background_work.mark_handed_over(walk, start, call.node)
    return result


def _run_library_function(walk: CallWalker, call: Call, position: int) -> Value | None:
    """`to_thread(requests.post, url)`: interpret it as if it were called here."""
    if not (call.ref in _FUNCTION_POSITIONS or call.name in _THREAD_METHODS) or position >= len(call.args):
        return None
    function = call.args[position]
    if not function.ref and function.base is None:
        return None
    function_node, *argument_nodes = call.node.args[position:]
    node = ast.copy_location(ast.Call(func=function_node, args=argument_nodes, keywords=[]), call.node)
    return walk.interpret_call(replace(call, node=node, target=function, args=call.args[position + 1 :]))


def _function_argument(call: Call, position: int) -> Function | None:
    return call.args[position].function if position < len(call.args) else None


def _run_thread(walk: CallWalker, call: Call) -> Value | None:
    """`Thread(target=work, args=(message,))`: run the target."""
    if call.ref not in ("threading.Thread", "multiprocessing.Process"):
        return None
    target = call.keywords.get("target", Value()).function
    return walk.invoke(target, call.keywords.get("args", Value()).items, {}, call.node) if target is not None else None


def _run_started(walk: CallWalker, call: Call) -> Value | None:
    """`.start()` of an object whose class inherits from a thread or a process: run its ``run``."""
    instance = call.receiver.instance
    if call.name != "start" or instance is None or call.target.function is not None:
        return None
    if not {"threading.Thread", "multiprocessing.Process"} & set(walk.ancestry(instance.cls)):
        return None
    run = walk.member(call.receiver, instance.cls, "run")
    return walk.invoke(run.function, (), {}, call.node) if run is not None and run.function is not None else None


def _run_with_retries(walk: CallWalker, call: Call) -> Value | None:
    """`Retrying(…)(work, message)`: run the function, and note that it may run several times."""
    if "retrying" not in (call.target.tag, call.tag) and call.ref != "retry.api.retry_call":
        return None
    function = _function_argument(call, 0)
    if function is None:
        return None
    with walk.at_position(replace(walk.position, retrying=True)):
        return walk.invoke(function, call.args[1:], call.keywords, call.node)


def _run_after_commit(walk: CallWalker, call: Call) -> Value | None:
    """`transaction.on_commit(work)`: run it outside the transaction."""
    if call.name not in ("on_commit", "run_after_commit", "after_commit") or not call.args:
        return None
    function = _function_argument(call, 0)
    if function is not None:
        with walk.at_position(replace(walk.position, transactions=(), deferred=True)):
            walk.invoke(function, (), {}, call.node)
    return Value(literal=None)


_INTERPRETERS = (
    _await_argument,
    _run_thread,
    _run_started,
    _run_after_commit,
    _make_retrying,
    _run_with_retries,
    _run_argument,
)
