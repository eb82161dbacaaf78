"""Tools that dedup: ours, others', and what says so by its name but cannot be looked into."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Operation, Value
from effectonce_lint.word_lists import tagged_pairs, word_set

from .message_parts import OFFSET
from .object_types import is_dedup_name, is_guard_name, to_snake_case
from .redis import seconds_of

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

#: First name of a package: what in it guards the function that it is given, or what comes after it.
_TOOLS = {
    "effectonce": word_set("once block idempotent tool_once transactional IdempotencyMiddleware"),
    "aws_lambda_powertools": word_set("idempotent idempotent_function"),
    "babelqueue": word_set("wrap"),
    "fastapi_idempotency": word_set("idempotent"),
}
_PACKAGES = word_set("idemkit celery_once celery_singleton idempotency_header asgi_idempotency_header idempotent")
"""Packages that are there for nothing else."""
_METHODS = tagged_pairs(
    "eo.inbox:first,first_many,call,handler,on_table eo.intents:operation,call,run eo.worker:handler eo.saga:step,run"
)
_GIVES_DECORATOR = word_set("once handler idempotent idempotent_function operation step tool_once transactional")
_TRANSPARENT = word_set(
    "functools contextlib dataclasses typing abc builtins pytest asyncio atexit enum celery dramatiq fastapi flask"
    " django rest_framework pydantic click typer inspect"
)
_BASES = ("QueueOnce", "Singleton", "Idempotent", "OnceTask", "ExactlyOnce")
_TRANSACTIONS = word_set("transaction atomic begin in_transaction unit_of_work uow transaction_scope")
_ASKS = ("get", "find", "exists", "fetch", "lookup", "has", "is_", "check", "contains", "was", "load")
_RETENTIONS = word_set("retention expires_after_seconds ttl ttl_seconds expiry")
_UNSTABLE = {
    "delivery_tag": "the delivery tag",
    "receipt_handle": "the receipt handle",
    "receiptHandle": "the receipt handle",
    "ReceiptHandle": "the receipt handle",
    "messageId": "the broker's MessageId",
    "MessageId": "the broker's MessageId",
    "offset": OFFSET,
}


def is_tool(target: Value) -> bool:
    """Whether a decorator, a function or a class is one of the known tools."""
    top, _, last = target.ref.partition(".")
    if top in _PACKAGES or last.rpartition(".")[2] in _TOOLS.get(top, ()):
        return True
    return target.base is not None and (target.base.tag, target.attr) in _METHODS


def guard_of_decorator(walk: CallWalker, node: ast.expr, target: Value) -> Operation | None:
    """The guard that a decorator is, if it is one."""
    name = target.attr or target.ref.rpartition(".")[2] or target.text.rpartition(".")[2]
    if is_tool(target):
        base = target.base
        made_here = base.fields if base is not None and base.tag == "eo.worker" else None
        if made_here is not None and not {"store", "inbox", "**"} & made_here.keys():
            return None  # a worker without either guards nothing
        return _make_guard(walk, node, name, base)
    seen = target.function is not None or target.cls is not None
    if seen or target.ref.partition(".")[0] in _TRANSPARENT or not is_guard_name(name):
        return None
    return Operation("guard", walk.place(node), text=name, store="opaque", atomic=True, node=node, module=walk.module)


def guard_of_framework(
    walk: CallWalker, target: Value, call: ast.Call | None, settings: dict[str, Value]
) -> Operation | None:
    """A guard that a framework is told to put around a consumer: `actor(once=…)`, a broker's middleware."""
    if call is None:
        return None
    once = settings.get("once")
    if once is not None and target.ref == "dramatiq.actor" and once.literal is not False:
        return walk.emit("guard", call, text="once", store="tool", atomic=True, key=_resolve_key(walk, once))
    middlewares = ((target.base.fields or {}) if target.base is not None else {}).get("middlewares")
    for each in middlewares.items if middlewares is not None else ():
        made = each.base.ref if each.base is not None else ""
        if made.startswith("effectonce.") or is_guard_name(made.rpartition(".")[2]):
            return walk.emit("guard", call, text=made.rpartition(".")[2], store="tool", atomic=True)
    for keyword in call.keywords:
        if keyword.arg is None and "idempot" in ast.unparse(keyword.value).lower():
            return walk.emit("guard", call, text="idempotency", store="tool", atomic=True)
    return None


def _make_guard(walk: CallWalker, node: ast.AST, text: str, base: Value | None = None) -> Operation:
    call = node if isinstance(node, ast.Call) else None
    kept = _retention_of(walk, call, base)
    return walk.emit("guard", node, text=text, store="tool", atomic=True, key=_key_of(walk, call), seconds=kept)


def _retention_of(walk: CallWalker, call: ast.Call | None, base: Value | None) -> float | None:
    """For how long a tool is told to remember: by itself, or by what it is a method of."""
    given = {each.arg: each.value for each in call.keywords if each.arg} if call is not None else {}
    for name in _RETENTIONS & given.keys():
        return seconds_of(walk.value(given[name]))
    settings = [base.fields or {}] if base is not None else []
    if "config" in given:  # of powertools
        settings.insert(0, walk.value(given["config"]).fields or {})
    return next((seconds_of(each[name]) for each in settings for name in sorted(_RETENTIONS & each.keys())), None)


def _key_of(walk: CallWalker, call: ast.Call | None) -> Value | None:
    """What a tool is told to take for the key."""
    for keyword in call.keywords if call is not None else ():
        if keyword.arg == "key":
            return _resolve_key(walk, walk.value(keyword.value))
        if keyword.arg == "config":  # of powertools
            path = (walk.value(keyword.value).fields or {}).get("event_key_jmespath")
            return _key_of_jmespath(path) if path is not None else None
    return None


def _key_of_jmespath(path: Value) -> Value:
    text = path.string or ""
    last = text.rpartition(".")[2].strip("[]\"' ")
    if last in _UNSTABLE and not text.startswith(("powertools_json", "body")):
        return replace(path, taint=frozenset({f"unstable:{_UNSTABLE[last]}"}))
    whole = text in ("body", "powertools_json(body)", "Records[*].body", "@")
    return replace(path, taint=frozenset({"digest"})) if whole else path


def _resolve_key(walk: CallWalker, key: Value) -> Value:
    """The key itself, where it is given as a path or by a function."""
    if key.function is not None:
        with walk.quietly():
            return walk.invoke(key.function, (), {}, key.function.node)
    if key.string is not None and (what := _UNSTABLE.get(key.string.rpartition(".")[2])):
        return replace(key, taint=frozenset({f"unstable:{what}"}))
    if key.ref.startswith("effectonce.") and "content" in key.ref:
        return replace(key, taint=frozenset({"digest"}))
    return key


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """A guard used as a function: `inbox.first(conn, message)`, `once(store)(handler)`, `wrap(store, handler)`."""
    target = call.target
    if target.tag == "guarded":  # once(…) gave it, and it is given the function
        return _wrap_function(call, target.origin[0] if target.origin else None)
    if call.ref.startswith("effectonce.") and call.name == "dispatcher" and call.args:
        return call.args[0]
    if not is_tool(target) and not is_tool(call.receiver):
        return None
    op = _make_guard(walk, call.node, call.name, call.receiver)
    if any(each.function is not None for each in call.all_arguments()):
        return _wrap_function(call, op)
    if call.name in _GIVES_DECORATOR:
        return Value(text=f"{call.name}()", tag="guarded", origin=(op,))
    if call.name in ("call", "run"):
        return Value(text=f"{call.name}()")
    return Value(text=f"{call.name}()", tag="guard", origin=(op,))


def _wrap_function(call: Call, op: Operation | None) -> Value:
    """The function that was given, now under a guard."""
    given = next((each for each in call.all_arguments() if each.function is not None), None)
    if given is None or given.function is None:
        return Value()
    return replace(given, function=replace(given.function, guard=op))


def guard_by_name(walk: CallWalker, call: Call) -> Value | None:
    """Something out of sight that says it dedups: its answer is trusted, its wrapping too."""
    name, owner = call.name, call.receiver.text.rpartition(".")[2]
    looks_up = name.startswith(_ASKS) and (is_dedup_name(name) or is_dedup_name(owner))
    owned = is_guard_name(owner) and name not in ("get", "set", "add", "append", "remove", "delete", "pop")
    if not (is_guard_name(name) or owned or looks_up) or call.ref.partition(".")[0] in _TRANSPARENT:
        return None
    op = walk.emit("read", call.node, text=call.source_text, store="opaque", location=owner or name, dedup=True)
    if any(each.function is not None for each in call.all_arguments()):
        return _wrap_function(call, op)
    if name.startswith("mark") or "remember" in name:
        op.kind = "mark"
    return Value(text=f"{call.source_text}()", origin=(op,), tag="opaque")


def guard_of_context(walk: CallWalker, item: ast.withitem, value: Value) -> Operation | None:
    """The guard that a `with` enters, if it is one."""
    if value.tag in ("guard", "opaque") and value.origin:
        op = value.origin[0]
        if value.tag == "opaque" and item.optional_vars is None and op.text.endswith(("acquire", "lock")):
            return None  # nobody looks at what it gives: it only keeps two apart
        op.kind = "guard"
        return op
    made = value.text.partition("(")[0].rpartition(".")[2]
    if made[:1].isupper() and value.base is not None and not value.tag and is_guard_name(made):
        return walk.emit("guard", item.context_expr, text=made, store="opaque", dedup=True)
    return None


def is_transaction_by_name(value: Value) -> bool:
    """`with db.transaction():`, whatever database that is."""
    return value.text.partition("(")[0].rpartition(".")[2] in _TRANSACTIONS


def is_lock_by_name(value: Value) -> bool:
    """`with lock(order_id):`, whatever lock that is."""
    name = to_snake_case(value.text.partition("(")[0].rpartition(".")[2])
    return name.endswith("lock") or "lock" in name.split("_") or "mutex" in name


def guard_of_bases(ancestors: list[str]) -> str:
    """The base class that makes a task run once, if one does."""
    for each in ancestors:
        last = each.rpartition(".")[2]
        if last.startswith(_BASES) or (is_guard_name(last) and "." not in each):
            return last
    return ""
