"""Background work: tasks and threads that the code does not wait for, and queues inside the process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from effectonce_lint.python.in_process_queues import TAKE_METHODS, QueueReader, last_name
from effectonce_lint.python.modules import ClassDefinition, Module
from effectonce_lint.python.taints import MESSAGE
from effectonce_lint.python.values import Function, TracedOperation, Value
from effectonce_lint.python.walk_state import taints_of
from effectonce_lint.word_lists import word_set

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker
    from effectonce_lint.python.walk_state import WalkState

_COROUTINE_STARTERS = word_set("create_task ensure_future run_coroutine_threadsafe")
"""Functions that start a coroutine, their first argument."""
#: Methods that start a function: the position of the argument with the function.
_FUNCTION_STARTERS = {"submit": 0, "start_soon": 0, "spawn": 0, "add_task": 0, "apply_async": 0, "run_in_executor": 1}
_THREAD_CLASSES = word_set("threading.Thread multiprocessing.Process")
_PUT_METHODS = word_set("put put_nowait append appendleft")
_WAIT_FUNCTIONS = word_set(
    "asyncio.gather asyncio.wait asyncio.wait_for asyncio.as_completed concurrent.futures.wait"
    " concurrent.futures.as_completed gevent.joinall"
)
_WAIT_METHODS = word_set("join result wait shutdown")
_COLLECTION_METHODS = word_set("add append discard remove")
_HARMLESS_MEMBERS = word_set("add_done_callback set_name start daemon name setDaemon setName")
_WORK_NAME = re.compile(
    r"(?:^|\.)_*(?:process|handle|fulfil|charge|save|store|persist|ship|perform|insert|upsert|settle|ingest|book|pay)"
    r"[a-z_]*$"
).search


def is_work(op: TracedOperation) -> bool:
    """Whether an operation in the background is work that must not get lost.

    A call whose code is not in the project is work only by its name: it may as well show the message in a browser.
    """
    return op.kind != "call" or bool(_WORK_NAME(op.text))


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call that puts into or takes from a queue inside the process, or waits for background work."""
    name, function = call.name, call.node.func
    if name in _PUT_METHODS:
        _run_queue_readers(walk, call)
    elif name in TAKE_METHODS and isinstance(function, ast.Attribute):
        return _take_message(walk, call, last_name(function.value))
    elif name == "iter" and len(call.args) == 2 and isinstance(call.node.args[0], ast.Attribute):
        message = walk.queued_values.get(last_name(call.node.args[0].value))
        return Value(text="iter()", tag="list", items=(message,), taint=message.taint) if message is not None else None
    elif call.ref in _WAIT_FUNCTIONS or (name in _WAIT_METHODS and _is_wait(call)):
        walk.emit("wait", call.node)
    return None


def _is_wait(call: Call) -> bool:
    """Whether a method waits: `jobs.join()`, `thread.join(5)`, `future.result()`, but not `", ".join(names)`."""
    is_unknown = call.target.function is None and not call.ref
    joins_text = call.name == "join" and bool(call.args) and not isinstance(call.args[0].literal, int | float)
    return is_unknown and not joins_text


# -- work that is started and not waited for


def mark_handed_over(walk: CallWalker, start: int, node: ast.AST) -> None:
    """Mark the operations since ``start`` as background work: they run at the same time as the code that follows."""
    started_at = walk.place(node)
    walk.started_background_work = True
    for op in walk.trace.ops[start:]:
        op.handed_over_at = started_at


def is_spawn(walk: CallWalker, node: ast.expr) -> bool:
    """Whether a call starts work without waiting for it: `asyncio.create_task(work(message))`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name = node.func.attr
    if name == "start":  # Thread(target=work).start()
        return isinstance(node.func.value, ast.Call) and _is_thread(walk, node.func.value)
    if name not in _COROUTINE_STARTERS and name not in _FUNCTION_STARTERS:
        return False
    with walk.mute_trace():
        target = walk.value(node.func)
        if target.function is not None:
            return False  # a function of the project: the walk through it has seen what it starts
        tag = target.base.tag if target.base is not None else ""
        if name in _COROUTINE_STARTERS or tag in ("executor", "task.group", "background"):
            return True
        position = _FUNCTION_STARTERS[name]
        if name == "apply_async" or len(node.args) <= position:
            return False  # Celery's: the task is durable
        function = node.args[position]
        is_name = isinstance(function, ast.Name | ast.Attribute | ast.Lambda)
        return is_name and MESSAGE not in walk.value(function).taint


def _is_thread(walk: CallWalker, node: ast.Call) -> bool:
    """Whether a call creates a thread or a process."""
    if last_name(node.func) not in ("Thread", "Process"):
        return False
    with walk.mute_trace():
        return walk.value(node.func).ref in _THREAD_CLASSES


def is_forgotten(walk: CallWalker, node: ast.Assign) -> bool:
    """Whether an assignment starts work that its function then only stores, and never waits for."""
    target, started = node.targets[0], node.value
    if not isinstance(target, ast.Name) or not isinstance(started, ast.Call):
        return False
    if not is_spawn(walk, started) and not _is_thread(walk, started):
        return False
    nodes = list(ast.walk(walk.active_functions[-1] if walk.active_functions else walk.module.tree))
    holders = _holders_of(nodes, target.id, _HARMLESS_MEMBERS)
    return holders is not None and all(
        _holders_of(nodes, holder, _COLLECTION_METHODS) is not None for holder in holders
    )


def _holders_of(nodes: list[ast.AST], text: str, harmless: frozenset[str]) -> list[str] | None:
    """The collections that ``text`` is added to; None if the code uses it in any way that is not ``harmless``."""
    other_uses = sum(isinstance(node, ast.Name | ast.Attribute) and _is_read(node, text) for node in nodes)
    holders = []
    for node in nodes:
        match node:
            case ast.Attribute(value=value, attr=attr) if attr in harmless and ast.unparse(value) == text:
                other_uses -= 1
            case ast.Call(func=ast.Attribute(value=holder, attr="add" | "append"), args=[ast.Name(id=name)]):
                if name == text:
                    other_uses -= 1
                    holders.append(ast.unparse(holder))
    return holders if not other_uses else None


def _is_read(node: ast.Name | ast.Attribute, text: str) -> bool:
    return isinstance(node.ctx, ast.Load) and ast.unparse(node) == text


# -- queues inside the process


def _run_queue_readers(walk: CallWalker, call: Call) -> None:
    """Walk through the readers of a queue that the message is put into, as background work."""
    method = call.node.func
    if walk.muted or not isinstance(method, ast.Attribute) or MESSAGE not in taints_of(*call.args):
        return
    name = last_name(method.value)
    for module in _modules_of_queue(walk, call, name):
        for reader in _readers_of(walk, module, name, method.value):
            if reader.node in walk.active_functions or (reader.node, name) in walk.walked_readers:
                continue
            walk.walked_readers.add((reader.node, name))
            start = len(walk.trace.ops)
            with _on_another_thread(walk):
                before, walk.queued_values = walk.queued_values, {**walk.queued_values, name: call.args[0]}
                _run_reader(walk, module, reader, call.node)
                walk.queued_values = before
            mark_handed_over(walk, start, call.node)
            walk.trace.ops[start:] = filter(is_work, walk.trace.ops[start:])


def _readers_of(walk: CallWalker, module: Module, name: str, queue: ast.expr) -> list[QueueReader]:
    """The functions that take from a queue. If it is an attribute of ``self`` that its own methods read, only those."""
    readers = module.buffers.get(name, [])
    if isinstance(queue, ast.Attribute) and isinstance(queue.value, ast.Name) and queue.value.id == "self":
        return [reader for reader in readers if _receiver_of(walk, reader) is not None] or readers
    return readers


def _modules_of_queue(walk: CallWalker, call: Call, name: str) -> Iterator[Module]:
    """The current file, and the one that the queue comes from."""
    yield walk.module
    holder = call.receiver.base
    if holder is not None and holder.module is not None:
        yield holder.module
    for binding in walk.module.bindings.get(name, ()):
        if binding.kind == "from":
            for path in walk.project.sources(walk.module, binding):
                if (source := walk.project.load(path)) is not None:
                    yield source


def _run_reader(walk: CallWalker, module: Module, reader: QueueReader, node: ast.AST) -> None:
    """Walk through a reader, as if it were called at ``node``."""
    local = walk.scope.find(reader.node.name)
    if local is not None and local.function is not None and local.function.node is reader.node:
        function = local.function
    else:
        function = Function(
            reader.node, module, owner=_class_of_reader(module, reader), receiver=_receiver_of(walk, reader)
        )
    parameters = [parameter.arg for parameter in (*reader.node.args.posonlyargs, *reader.node.args.args)]
    if reader.owner is not None:
        parameters = parameters[1:]
    walk.invoke(function, tuple(Value(text=parameter) for parameter in parameters), {}, node)


def _class_of_reader(module: Module, reader: QueueReader) -> ClassDefinition | None:
    if reader.owner is None:
        return None
    cls = module.classes.get(reader.owner.name)
    return cls if cls is not None and cls.node is reader.owner else ClassDefinition(reader.owner, module)


def _receiver_of(walk: CallWalker, reader: QueueReader) -> Value | None:
    """The current object, if the reader is one of its methods."""
    receiver = walk.scope.find("self")
    is_own_method = (
        receiver is not None and receiver.instance is not None and receiver.instance.cls.node is reader.owner
    )
    return receiver if is_own_method else None


@contextmanager
def _on_another_thread(walk: WalkState) -> Iterator[None]:
    """Walk on another thread: it does not share the open transactions, tries and loops of this one.

    Errors that are caught there are not the consumer's, so they are not recorded.
    """
    caught = len(walk.trace.handlers)
    with walk.at_position(walk.position.on_another_thread()):
        yield
    del walk.trace.handlers[caught:]


def _take_message(walk: CallWalker, call: Call, name: str) -> Value | None:
    """The message that a reader takes from a queue, if it was put there during this walk."""
    if (message := walk.queued_values.get(name)) is not None:
        return message
    if walk.started_background_work and name in walk.module.buffers:
        walk.emit("wait", call.node)  # for the answer of the background work
    return None
