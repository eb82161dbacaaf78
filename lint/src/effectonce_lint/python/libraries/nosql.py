"""DynamoDB, MongoDB, caches and containers in memory: look-ups, claims, records and increments in them."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from effectonce_lint.python.values import Effect, OperationTarget, TracedOperation, Value
from effectonce_lint.word_lists import word_set

from .message_parts import is_stable, is_unstable
from .object_types import is_dedup_name
from .redis import seconds_of
from .sql_drivers import hold_claim

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_DYNAMODB_METHODS = word_set("put_item update_item get_item transact_write_items")
_EXPIRY_ARGUMENTS = ("timeout", "expire", "time", "ttl")
_MONGODB_METHODS = word_set("insert_one insert_many update_one update_many find_one find_one_and_update")


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call of a store without SQL, or of a container; None for other calls."""
    tag, name = call.tag, call.name
    if name in ("append", "add", "appendleft") and call.args:
        register_handler(walk, call.receiver, call.args[0])
    if call.ref.startswith("django.core.cache.") or tag == "cache":
        return _interpret_cache(walk, call, name)
    if tag in ("dynamo.table", "aws.dynamodb") or name in _DYNAMODB_METHODS:
        return _interpret_dynamodb(walk, call, name)
    if name in ("put_object", "upload_file", "upload_fileobj") and tag.startswith("aws."):
        key = call.argument(2, "Key")
        if key is not None and is_unstable(key):
            walk.emit("effect", call.node, text=call.source_text, effect=Effect("counter", "stores a new object"))
            return Value(text=f"{name}()")
    if tag == "mongo.collection" or name in _MONGODB_METHODS:
        return _interpret_mongodb(walk, call, name)
    if tag in ("set", "dict", "list", "deque"):
        return _interpret_container(walk, call, name)
    return None


# -- caches


def _interpret_cache(walk: CallWalker, call: Call, name: str) -> Value | None:
    key = call.argument(0, "key") or Value()
    name_of_key = key.string or key.text
    description: OperationTarget = {"text": call.source_text, "store": "cache", "location": key.text, "key": key}
    description["dedup"] = is_dedup_name(name_of_key)
    seconds = seconds_of(call.argument(2, *_EXPIRY_ARGUMENTS))
    op: TracedOperation | None = None
    match name.removeprefix("a") if name not in ("add", "aadd") else "add":
        case "get" | "has_key":
            op = walk.emit("read", call.node, **description)
        case "add":
            op = walk.emit("mark", call.node, atomic=True, expires=True, seconds=seconds, **description)
        case "set":
            op = walk.emit("mark", call.node, expires=True, seconds=seconds, **description)
        case "incr" | "decr":
            op = walk.emit(
                "effect", call.node, effect=Effect("counter", f"counts up {name_of_key!r}"), atomic=True, **description
            )
        case "delete":
            walk.emit("unmark", call.node, **description)
            return Value()
        case "lock":
            return Value(text="lock()", tag="lock")
    return Value(text=f"cache({key.text})", origin=(op,)) if op is not None else None


# -- DynamoDB

_GROWING_UPDATE = re.compile(r"\bADD\b|(\S+)\s*=\s*(?:if_not_exists\s*\([^)]*\)|\1)\s*[-+]|list_append", re.IGNORECASE)


def _interpret_dynamodb(walk: CallWalker, call: Call, name: str) -> Value | None:
    table = call.keywords.get("TableName") or (call.receiver.items[0] if call.receiver.items else Value())
    location = table.string or call.receiver.text
    item = call.keywords.get("Item") or call.keywords.get("Key") or Value()
    description: dict[str, Any] = {"text": call.source_text, "store": "dynamo", "location": location}
    description["key"] = next(iter((item.fields or {}).values()), None)
    description["dedup"] = is_dedup_name(location) or any(map(is_dedup_name, item.fields or {}))
    update = call.keywords.get("UpdateExpression", Value()).string or ""
    if name == "transact_write_items" or (
        name in ("put_item", "update_item") and "ConditionExpression" in call.keywords
    ):
        op = hold_claim(walk, walk.emit("claim", call.node, atomic=True, **description))
    elif name in ("get_item", "query"):
        op = walk.emit("read", call.node, **description)
    elif name == "put_item" and any(
        is_unstable(value) for field, value in (item.fields or {}).items() if _is_key_field(field)
    ):
        op = walk.emit("effect", call.node, effect=Effect("counter", f"puts a new item into {location}"), **description)
    elif name == "put_item":
        op = walk.emit("mark" if description["dedup"] else "write", call.node, **description)
    elif name == "update_item" and _GROWING_UPDATE.search(update):
        op = walk.emit("effect", call.node, effect=Effect("counter", f"adds to an item of {location}"), **description)
    elif name == "update_item":
        op = walk.emit("write", call.node, **description)
    elif name == "delete_item":
        op = walk.emit("unmark", call.node, **description)
    else:
        return None
    return Value(text=f"{location}.{name}()", origin=(op,))


def _is_key_field(field: str) -> bool:
    """Whether a field of an item is a part of its key, by its usual names."""
    return field.lower() in ("pk", "sk", "id", "uuid", "key")


# -- MongoDB


def _interpret_mongodb(walk: CallWalker, call: Call, name: str) -> Value | None:
    location = call.receiver.text
    fields = (call.argument(0, "filter", "document", "documents") or Value()).fields or {}
    description: dict[str, Any] = {"text": call.source_text, "store": "mongo", "location": location}
    description["key"] = fields.get("_id") or next(iter(fields.values()), None)
    description["dedup"] = is_dedup_name(location.rpartition(".")[2])
    if name in ("find_one", "count_documents", "find"):
        op = walk.emit("read", call.node, **description)
    elif name in ("insert_one", "insert_many"):
        if walk.unique_tries or description["dedup"] or is_stable(fields.get("_id", Value())):
            op = hold_claim(walk, walk.emit("claim", call.node, atomic=True, **description))
        else:
            op = walk.emit("effect", call.node, effect=Effect("counter", f"inserts into {location}"), **description)
    elif name in ("update_one", "update_many", "find_one_and_update"):
        update = (call.argument(1, "update") or Value()).fields or {}
        growing_operator = next((word for word in ("$inc", "$push", "$mul") if word in update), "")
        is_compare_and_set = bool((update.get("$set", Value()).fields or {}).keys() & fields.keys())
        is_insert_only = "upsert" in call.keywords and "$setOnInsert" in update
        if growing_operator and not is_compare_and_set:
            effect = Effect("counter", f"adds to a document of {location} ({growing_operator})")
            op = walk.emit("effect", call.node, effect=effect, **description)
        else:
            is_mark = is_compare_and_set or is_insert_only or description["dedup"]
            op = walk.emit(
                "mark" if is_mark else "write", call.node, atomic=is_compare_and_set or is_insert_only, **description
            )
    elif name in ("replace_one", "find_one_and_replace", "bulk_write"):
        op = walk.emit("write", call.node, **description)
    elif name in ("delete_one", "delete_many"):
        op = walk.emit("unmark", call.node, **description)
    else:
        return None
    return Value(text=f"{location}.{name}()", origin=(op,))


# -- containers in memory


def _interpret_container(walk: CallWalker, call: Call, name: str) -> Value | None:
    container = call.receiver
    if name in ("add", "append", "appendleft", "setdefault") and call.args and walk.outlives(container):
        walk.emit("mark", call.node, text=call.source_text, store="memory", location=container.text, key=call.args[0])
        return Value(literal=None)
    if name in ("discard", "remove", "pop", "clear"):
        walk.emit("unmark", call.node, text=call.source_text, store="memory", location=container.text)
        return Value()
    if name in ("get", "count", "index") and call.args and walk.outlives(container) and not container.fields:
        op = walk.emit(
            "read", call.node, text=call.source_text, store="memory", location=container.text, key=call.args[0]
        )
        return Value(text=f"{container.text}.{name}()", origin=(op,))
    if name in ("extend", "update", "copy", "keys"):
        return replace(container, text=f"{container.text}.{name}()") if name == "copy" else None
    return None


def register_handler(walk: CallWalker, container: Value, value: Value) -> None:
    """Add a handler to the table that holds it: `self.handlers.setdefault(topic, []).append(handler)`."""
    if value.function is None and value.instance is None:
        return
    for holder in (container, container.base):
        if holder is None or holder.home is not None:
            return
        if holder.tag in ("dict", "list", "set", "deque"):
            walk.project.track_change(holder)
        if holder.tag == "dict":
            holder.fields = {**(holder.fields or {}), f"<{value.text}>": value}
        elif holder.tag in ("list", "set", "deque"):
            holder.items = (*holder.items, value)


def set_item(walk: CallWalker, target: ast.Subscript, container: Value, key: Value, value: Value) -> None:
    """`seen[id] = True` records the message in this process's memory."""
    if not isinstance(key.literal, str):
        register_handler(walk, container, value)
    if container.tag == "dict" and walk.outlives(container) and container.text != "{…}":
        walk.emit("mark", target, text=ast.unparse(target), store="memory", location=container.text, key=key)


def delete_item(walk: CallWalker, target: ast.expr) -> None:
    """`del seen[id]` removes such a record."""
    if isinstance(target, ast.Subscript):
        container = walk.value(target.value)
        if container.tag == "dict":
            walk.emit("unmark", target, store="memory", location=container.text)
