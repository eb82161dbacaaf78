"""Background work: tasks and threads that are not waited for, and queues inside the process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from effectonce_lint.python.in_process_queues import TAKE_METHODS, QueueReader, last_name
from effectonce_lint.python.modules import ClassDefinition, Module
from effectonce_lint.python.values import Function, Operation, Value
from effectonce_lint.python.walk_state import taints_of
from effectonce_lint.word_lists import word_set

from .message_parts import MESSAGE

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker
    from effectonce_lint.python.walk_state import WalkState

_STARTS = word_set("create_task ensure_future run_coroutine_threadsafe")
"""Given what a call gives."""
#: Given a function: where that stands among the arguments.
_SUBMITS = {"submit": 0, "start_soon": 0, "spawn": 0, "add_task": 0, "apply_async": 0, "run_in_executor": 1}
_THREADS = word_set("threading.Thread multiprocessing.Process")
_PUTS = word_set("put put_nowait append appendleft")
_WAITS = word_set(
    "asyncio.gather asyncio.wait asyncio.wait_for asyncio.as_completed concurrent.futures.wait"
    " concurrent.futures.as_completed gevent.joinall"
)
_WAIT_METHODS = word_set("join result wait shutdown")
_HOLDS = word_set("add append discard remove")
_NO_WAIT = word_set("add_done_callback set_name start daemon name setDaemon setName")
_WORKS = re.compile(
    r"(?:^|\.)_*(?:process|handle|fulfil|charge|save|store|persist|ship|perform|insert|upsert|settle|ingest|book|pay)"
    r"[a-z_]*$"
).search


def is_work(op: Operation) -> bool:
    """Whether something that was handed over is work: of what is out of sight, only what says so by its name. To show
    a message in a browser is none."""
    return op.kind != "call" or bool(_WORKS(op.text))


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    name, function = call.name, call.node.func
    if name in _PUTS:
        _run_queue_readers(walk, call)
    elif name in TAKE_METHODS and isinstance(function, ast.Attribute):
        return _take_message(walk, call, last_name(function.value))
    elif name == "iter" and len(call.args) == 2 and isinstance(call.node.args[0], ast.Attribute):
        found = walk.queued_values.get(last_name(call.node.args[0].value))
        return Value(text="iter()", tag="list", items=(found,), taint=found.taint) if found is not None else None
    elif call.ref in _WAITS or (name in _WAIT_METHODS and _is_wait(call)):
        walk.emit("wait", call.node)
    return None


def _is_wait(call: Call) -> bool:
    """`jobs.join()`, `thread.join(5)`, `future.result()`; not `", ".join(names)`."""
    waited = call.target.function is None and not call.ref
    joins_text = call.name == "join" and bool(call.args) and not isinstance(call.args[0].literal, int | float)
    return waited and not joins_text


# -- started and not waited for


def mark_handed_over(walk: CallWalker, start: int, node: ast.AST) -> None:
    """All that happened since ``start`` happens beside what follows."""
    at = walk.place(node)
    walk.started_background_work = True
    for op in walk.trace.ops[start:]:
        op.handed = at


def is_spawn(walk: CallWalker, node: ast.expr) -> bool:
    """Whether a call starts work without waiting for it: `asyncio.create_task(work(message))`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name = node.func.attr
    if name == "start":  # Thread(target=work).start()
        return isinstance(node.func.value, ast.Call) and _is_thread(walk, node.func.value)
    if name not in _STARTS and name not in _SUBMITS:
        return False
    with walk.quietly():
        target = walk.value(node.func)
        if target.function is not None:
            return False  # the project's own: what it starts was seen there
        tag = target.base.tag if target.base is not None else ""
        if name in _STARTS or tag in ("executor", "task.group", "background"):
            return True
        position = _SUBMITS[name]
        if name == "apply_async" or len(node.args) <= position:
            return False  # of Celery, and durable
        given = node.args[position]
        plain = isinstance(given, ast.Name | ast.Attribute | ast.Lambda)
        return plain and MESSAGE not in walk.value(given).taint


def _is_thread(walk: CallWalker, node: ast.Call) -> bool:
    if last_name(node.func) not in ("Thread", "Process"):
        return False
    with walk.quietly():
        return walk.value(node.func).ref in _THREADS


def is_forgotten(walk: CallWalker, node: ast.Assign) -> bool:
    """Whether what an assignment starts is only kept, and never waited for where it was started."""
    target, made = node.targets[0], node.value
    if not isinstance(target, ast.Name) or not isinstance(made, ast.Call):
        return False
    if not is_spawn(walk, made) and not _is_thread(walk, made):
        return False
    inside = list(ast.walk(walk.active_functions[-1] if walk.active_functions else walk.module.tree))
    kept = _storage_of(inside, target.id, _NO_WAIT)
    return kept is not None and all(_storage_of(inside, each, _HOLDS) is not None for each in kept)


def _storage_of(inside: list[ast.AST], text: str, harmless: frozenset[str]) -> list[str] | None:
    """Where ``text`` is put; None if anything is done with it but that, and what is harmless."""
    uses = sum(isinstance(each, ast.Name | ast.Attribute) and _is_read(each, text) for each in inside)
    kept = []
    for each in inside:
        match each:
            case ast.Attribute(value=value, attr=attr) if attr in harmless and ast.unparse(value) == text:
                uses -= 1
            case ast.Call(func=ast.Attribute(value=holder, attr="add" | "append"), args=[ast.Name(id=name)]):
                if name == text:
                    uses -= 1
                    kept.append(ast.unparse(holder))
    return kept if not uses else None


def _is_read(node: ast.Name | ast.Attribute, text: str) -> bool:
    return isinstance(node.ctx, ast.Load) and ast.unparse(node) == text


# -- put into a queue


def _run_queue_readers(walk: CallWalker, call: Call) -> None:
    """The message goes into a queue inside the process: walk through its readers, as running beside what follows."""
    function = call.node.func
    if walk.muted or not isinstance(function, ast.Attribute) or MESSAGE not in taints_of(*call.args):
        return
    name = last_name(function.value)
    for module in _modules_of_queue(walk, call, name):
        for taker in _readers_of(walk, module, name, function.value):
            if taker.node in walk.active_functions or (taker.node, name) in walk.walked_readers:
                continue
            walk.walked_readers.add((taker.node, name))
            start = len(walk.trace.ops)
            with _on_another_thread(walk):
                before, walk.queued_values = walk.queued_values, {**walk.queued_values, name: call.args[0]}
                _run_reader(walk, module, taker, call.node)
                walk.queued_values = before
            mark_handed_over(walk, start, call.node)
            walk.trace.ops[start:] = filter(is_work, walk.trace.ops[start:])


def _readers_of(walk: CallWalker, module: Module, name: str, queue: ast.expr) -> list[QueueReader]:
    """Who takes from a queue; of an object's own, where there are any, its own methods only."""
    found = module.buffers.get(name, [])
    if isinstance(queue, ast.Attribute) and isinstance(queue.value, ast.Name) and queue.value.id == "self":
        return [each for each in found if _receiver_of(walk, each) is not None] or found
    return found


def _modules_of_queue(walk: CallWalker, call: Call, name: str) -> Iterator[Module]:
    """The file that we are in, and the one that the queue comes from."""
    yield walk.module
    holder = call.receiver.base
    if holder is not None and holder.module is not None:
        yield holder.module
    for binding in walk.module.bindings.get(name, ()):
        if binding.kind == "from":
            for path in walk.project.sources(walk.module, binding):
                if (source := walk.project.load(path)) is not None:
                    yield source


def _run_reader(walk: CallWalker, module: Module, taker: QueueReader, node: ast.AST) -> None:
    known = walk.scope.find(taker.node.name)
    if known is not None and known.function is not None and known.function.node is taker.node:
        function = known.function
    else:
        function = Function(
            taker.node, module, owner=_class_of_reader(module, taker), receiver=_receiver_of(walk, taker)
        )
    parameters = [each.arg for each in (*taker.node.args.posonlyargs, *taker.node.args.args)]
    if taker.owner is not None:
        parameters = parameters[1:]
    walk.invoke(function, tuple(Value(text=each) for each in parameters), {}, node)


def _class_of_reader(module: Module, taker: QueueReader) -> ClassDefinition | None:
    if taker.owner is None:
        return None
    known = module.classes.get(taker.owner.name)
    return known if known is not None and known.node is taker.owner else ClassDefinition(taker.owner, module)


def _receiver_of(walk: CallWalker, taker: QueueReader) -> Value | None:
    """The object that we are in, where the taker is a method of its own."""
    here = walk.scope.find("self")
    same = here is not None and here.instance is not None and here.instance.cls.node is taker.owner
    return here if same else None


@contextmanager
def _on_another_thread(walk: WalkState) -> Iterator[None]:
    """On another thread: nothing that is open here is open there, and what is caught there is not ours."""
    caught = len(walk.trace.handlers)
    with walk.at(walk.position.on_another_thread()):
        yield
    del walk.trace.handlers[caught:]


def _take_message(walk: CallWalker, call: Call, name: str) -> Value | None:
    if (found := walk.queued_values.get(name)) is not None:
        return found
    if walk.started_background_work and name in walk.module.buffers:
        walk.emit("wait", call.node)  # for an answer
    return None
