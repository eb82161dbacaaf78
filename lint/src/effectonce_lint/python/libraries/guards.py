"""Tools that dedup: effectonce, other libraries, and functions that are guards by their name."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.taints import DIGEST, OFFSET, unstable_taint
from effectonce_lint.python.values import TracedOperation, Value
from effectonce_lint.word_lists import tagged_pairs, word_set

from .object_types import is_dedup_name, is_guard_name, to_snake_case
from .redis import seconds_of

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

#: By package: the decorators and functions that guard a function, or the code after them.
_TOOL_NAMES = {
    "effectonce": word_set("once block idempotent tool_once transactional IdempotencyMiddleware"),
    "aws_lambda_powertools": word_set("idempotent idempotent_function"),
    "babelqueue": word_set("wrap"),
    "fastapi_idempotency": word_set("idempotent"),
}
_GUARD_PACKAGES = word_set("idemkit celery_once celery_singleton idempotency_header asgi_idempotency_header idempotent")
"""Packages all of whose names are guards."""
_TOOL_METHODS = tagged_pairs(
    "eo.inbox:first,first_many,call,handler,on_table eo.intents:operation,call,run eo.worker:handler eo.saga:step,run"
)
_DECORATOR_FACTORIES = word_set("once handler idempotent idempotent_function operation step tool_once transactional")
_OTHER_LIBRARIES = word_set(
    "functools contextlib dataclasses typing abc builtins pytest asyncio atexit enum celery dramatiq fastapi flask"
    " django rest_framework pydantic click typer inspect"
)
_GUARD_BASES = ("QueueOnce", "Singleton", "Idempotent", "OnceTask", "ExactlyOnce")
_TRANSACTION_NAMES = word_set("transaction atomic begin in_transaction unit_of_work uow transaction_scope")
_LOOK_UP_VERBS = ("get", "find", "exists", "fetch", "lookup", "has", "is_", "check", "contains", "was", "load")
_RETENTION_SETTINGS = word_set("retention expires_after_seconds ttl ttl_seconds expiry")
_UNSTABLE_FIELDS = {
    "delivery_tag": "the delivery tag",
    "receipt_handle": "the receipt handle",
    "receiptHandle": "the receipt handle",
    "ReceiptHandle": "the receipt handle",
    "messageId": "the broker's MessageId",
    "MessageId": "the broker's MessageId",
    "offset": OFFSET,
}


def is_tool(walk: CallWalker, target: Value) -> bool:
    """Whether a decorator, a function or a class is one of the known tools, or one that the project declares."""
    if walk.project.declared.declares_guard(target):
        return True
    top, _, last = target.ref.partition(".")
    if top in _GUARD_PACKAGES or last.rpartition(".")[2] in _TOOL_NAMES.get(top, ()):
        return True
    return target.base is not None and (target.base.tag, target.attr) in _TOOL_METHODS


def guard_of_decorator(walk: CallWalker, node: ast.expr, target: Value) -> TracedOperation | None:
    """The guard that a decorator adds to its function, if it does."""
    name = target.attr or target.ref.rpartition(".")[2] or target.text.rpartition(".")[2]
    if is_tool(walk, target):
        base = target.base
        worker_settings = base.fields if base is not None and base.tag == "eo.worker" else None
        if worker_settings is not None and not {"store", "inbox", "**"} & worker_settings.keys():
            return None  # a worker without either guards nothing
        return _make_guard(walk, node, name, base)
    is_in_project = target.function is not None or target.cls is not None
    if is_in_project or target.ref.partition(".")[0] in _OTHER_LIBRARIES or not is_guard_name(name):
        return None
    return TracedOperation(
        "guard", walk.place(node), text=name, store="opaque", atomic=True, node=node, module=walk.module
    )


def guard_of_framework(
    walk: CallWalker, target: Value, call: ast.Call | None, settings: dict[str, Value]
) -> TracedOperation | None:
    """The guard that a framework puts around a consumer, by its settings: `actor(once=…)`, a broker's middleware."""
    if call is None:
        return None
    once = settings.get("once")
    if once is not None and target.ref == "dramatiq.actor" and once.literal is not False:
        return walk.emit("guard", call, text="once", store="tool", atomic=True, key=_resolve_key(walk, once))
    middlewares = ((target.base.fields or {}) if target.base is not None else {}).get("middlewares")
    for middleware in middlewares.items if middlewares is not None else ():
        class_name = middleware.base.ref if middleware.base is not None else ""
        if class_name.startswith("effectonce.") or is_guard_name(class_name.rpartition(".")[2]):
            return walk.emit("guard", call, text=class_name.rpartition(".")[2], store="tool", atomic=True)
    for keyword in call.keywords:
        if keyword.arg is None and "idempot" in ast.unparse(keyword.value).lower():
            return walk.emit("guard", call, text="idempotency", store="tool", atomic=True)
    return None


def _make_guard(walk: CallWalker, node: ast.AST, text: str, base: Value | None = None) -> TracedOperation:
    call = node if isinstance(node, ast.Call) else None
    retention = _retention_of(walk, call, base)
    return walk.emit("guard", node, text=text, store="tool", atomic=True, key=_key_of(walk, call), seconds=retention)


def _retention_of(walk: CallWalker, call: ast.Call | None, base: Value | None) -> float | None:
    """How many seconds a tool remembers: by its own arguments, its config (powertools), or those of its object."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg} if call is not None else {}
    for name in _RETENTION_SETTINGS & keywords.keys():
        return seconds_of(walk.value(keywords[name]))
    settings = [base.fields or {}] if base is not None else []
    if "config" in keywords:
        settings.insert(0, walk.value(keywords["config"]).fields or {})
    for fields in settings:
        for name in sorted(_RETENTION_SETTINGS & fields.keys()):
            return seconds_of(fields[name])
    return None


def _key_of(walk: CallWalker, call: ast.Call | None) -> Value | None:
    """The key that a tool is set to use."""
    for keyword in call.keywords if call is not None else ():
        if keyword.arg == "key":
            return _resolve_key(walk, walk.value(keyword.value))
        if keyword.arg == "config":  # powertools
            path = (walk.value(keyword.value).fields or {}).get("event_key_jmespath")
            return _key_of_jmespath(path) if path is not None else None
    return None


def _key_of_jmespath(path: Value) -> Value:
    """The key that a JMESPath takes from an event."""
    text = path.string or ""
    last = text.rpartition(".")[2].strip("[]\"' ")
    if last in _UNSTABLE_FIELDS and not text.startswith(("powertools_json", "body")):
        return replace(path, taint=frozenset({unstable_taint(_UNSTABLE_FIELDS[last])}))
    is_whole_payload = text in ("body", "powertools_json(body)", "Records[*].body", "@")
    return replace(path, taint=frozenset({DIGEST})) if is_whole_payload else path


def _resolve_key(walk: CallWalker, key: Value) -> Value:
    """The key that ``key`` leads to, if it is a path or a function."""
    if key.function is not None:
        with walk.mute_trace():
            return walk.invoke(key.function, (), {}, key.function.node)
    if key.string is not None and (unstable_part := _UNSTABLE_FIELDS.get(key.string.rpartition(".")[2])):
        return replace(key, taint=frozenset({unstable_taint(unstable_part)}))
    if key.ref.startswith("effectonce.") and "content" in key.ref:
        return replace(key, taint=frozenset({DIGEST}))
    return key


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call of a tool: `inbox.first(conn, message)`, `once(store)(handler)`, `wrap(store, handler)`."""
    target = call.target
    if target.tag == "guarded":  # the decorator that once(…) returned
        return _wrap_function(call, target.origin[0] if target.origin else None)
    if call.ref.startswith("effectonce.") and call.name == "dispatcher" and call.args:
        return call.args[0]
    if not is_tool(walk, target) and not is_tool(walk, call.receiver):
        return None
    op = _make_guard(walk, call.node, call.name, call.receiver)
    if any(argument.function is not None for argument in call.all_arguments()):
        return _wrap_function(call, op)
    if call.name in _DECORATOR_FACTORIES:
        return Value(text=f"{call.name}()", tag="guarded", origin=(op,))
    if call.name in ("call", "run"):
        return Value(text=f"{call.name}()")
    return Value(text=f"{call.name}()", tag="guard", origin=(op,))


def _wrap_function(call: Call, op: TracedOperation | None) -> Value:
    """The function that ``call`` is passed, with the guard."""
    for argument in call.all_arguments():
        if argument.function is not None:
            return replace(argument, function=replace(argument.function, guard=op))
    return Value()


def guard_by_name(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call that is a guard by its name, as its code is not in the project. It is trusted to be right."""
    name, owner = call.name, call.receiver.text.rpartition(".")[2]
    looks_up = name.startswith(_LOOK_UP_VERBS) and (is_dedup_name(name) or is_dedup_name(owner))
    has_guard_owner = is_guard_name(owner) and name not in ("get", "set", "add", "append", "remove", "delete", "pop")
    if not (is_guard_name(name) or has_guard_owner or looks_up) or call.ref.partition(".")[0] in _OTHER_LIBRARIES:
        return None
    op = walk.emit("read", call.node, text=call.source_text, store="opaque", location=owner or name, dedup=True)
    if any(argument.function is not None for argument in call.all_arguments()):
        return _wrap_function(call, op)
    if name.startswith("mark") or "remember" in name:
        op.kind = "mark"
    return Value(text=f"{call.source_text}()", origin=(op,), tag="opaque")


def guard_of_context(walk: CallWalker, item: ast.withitem, value: Value) -> TracedOperation | None:
    """The guard that a ``with`` enters, if it does."""
    if value.tag in ("guard", "opaque") and value.origin:
        op = value.origin[0]
        if value.tag == "opaque" and item.optional_vars is None and op.text.endswith(("acquire", "lock")):
            return None  # a lock whose result is not used: it lets the duplicate through after the first
        op.kind = "guard"
        return op
    class_name = value.text.partition("(")[0].rpartition(".")[2]
    if class_name[:1].isupper() and value.base is not None and not value.tag and is_guard_name(class_name):
        return walk.emit("guard", item.context_expr, text=class_name, store="opaque", dedup=True)
    return None


def is_transaction_by_name(value: Value) -> bool:
    """Whether a context manager is a transaction by its name: `with db.transaction():`."""
    return value.text.partition("(")[0].rpartition(".")[2] in _TRANSACTION_NAMES


def is_lock_by_name(value: Value) -> bool:
    """Whether a context manager is a lock by its name: `with lock(order_id):`."""
    name = to_snake_case(value.text.partition("(")[0].rpartition(".")[2])
    return name.endswith("lock") or "lock" in name.split("_") or "mutex" in name


def guard_of_bases(ancestors: list[str]) -> str:
    """The name of the base class that dedups its tasks; "" if none does."""
    for name in ancestors:
        last = name.rpartition(".")[2]
        if last.startswith(_GUARD_BASES) or (is_guard_name(last) and "." not in name):
            return last
    return ""
