"""Redis, caches, DynamoDB, MongoDB and plain containers: what is looked up, claimed, recorded and added to in them."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce.lint.python.values import Effect, Op, Val

from .names import dedupish
from .words import words

if TYPE_CHECKING:
    from effectonce.lint.python.calls import Call, Calls

_READS = words("get exists sismember hget hexists zscore smismember getbit lpos ttl")
_COUNTERS = words("incr incrby incrbyfloat decr decrby hincrby hincrbyfloat zincrby")
_PUSHES = words("lpush rpush lpushx rpushx")
_DELETES = words("delete srem hdel unlink zrem")
_ONLY_REDIS = words(
    "setnx sismember hsetnx sadd srem hincrby incrby incrbyfloat hexists zincrby zadd lpush rpush setex psetex decrby"
)
_EXPIRY = ("ex", "px", "exat", "pxat", "keepttl", "expire", "timeout", "ttl")


def called(walk: Calls, call: Call) -> Val | None:
    tag, name = call.tag, call.name
    if ("redis.script" in (call.target.tag, tag) and name != "register_script") or (
        tag == "redis" and name in ("eval", "evalsha")
    ):
        return _script(walk, call)
    if tag == "redis" or (not tag and not call.ref and call.target.function is None and _is_redis(call)):
        return _redis(walk, call, name)
    if call.ref.startswith("django.core.cache.") or tag in ("cache", "django.cache"):
        return _cache(walk, call, name)
    if (
        tag == "dynamo.table"
        or tag == "aws.dynamodb"
        or name in ("put_item", "update_item", "get_item", "transact_write_items")
    ):
        return _dynamo(walk, call, name)
    if tag == "mongo.collection" or name in (
        "insert_one",
        "insert_many",
        "update_one",
        "find_one_and_update",
        "find_one",
        "update_many",
    ):
        return _mongo(walk, call, name)
    if tag in ("set", "dict", "list", "deque"):
        return _memory(walk, call, name)
    return None


# -- Redis


def _is_redis(call: Call) -> bool:
    """A client out of sight that is used as only Redis is."""
    if call.name == "set":
        return bool({"nx", "ex", "px"} & set(call.keywords))
    if call.name in _ONLY_REDIS:
        return True
    last = call.receiver.text.rpartition(".")[2].lower().strip("_")
    return last in ("redis", "redis_client", "redis_conn", "rdb", "redis_cli") and call.name in (
        _READS | _COUNTERS | _PUSHES | {"set", "expire", "delete"}
    )


def _redis(walk: Calls, call: Call, name: str) -> Val | None:
    key = call.argument(0, "name", "key") or Val()
    member = (
        call.args[1]
        if len(call.args) > 1
        and name in ("sismember", "sadd", "srem", "hget", "hexists", "hsetnx", "hset", "hdel", "zscore", "zadd")
        else None
    )
    location = key.text if member is None else f"{key.text}/{_members(member)}"
    subject = member if member is not None and member.taint else key
    common = {
        "text": call.shown,
        "store": "redis",
        "location": location,
        "key": subject,
        "dedup": dedupish(key.string or key.text) or dedupish(location),
    }
    result = f"{call.shown}({location})"
    if name in _READS:
        op = walk.emit("read", call.node, **common)
        return Val(text=result, origin=(op,), tag="redis.value")
    if name in ("set", "setnx", "setex", "psetex", "getset", "hsetnx", "hset", "sadd", "zadd"):
        op = walk.emit(
            "mark",
            call.node,
            atomic=_atomic(call, name),
            expires=_expires(call, name),
            seconds=_seconds(call, name),
            **common,
        )
        return Val(text=result, origin=(op,), tag="redis.value")
    if name in _COUNTERS:
        op = walk.emit(
            "effect",
            call.node,
            effect=Effect("counter", f"counts up {_named(key)}"),
            expires=False,
            atomic=True,
            **common,
        )
        return Val(text=result, origin=(op,), tag="redis.count")
    if name in ("expire", "pexpire", "expireat"):
        _expire(walk, call, key, call.argument(1, "time"))
        return Val(text=result)
    if name in _DELETES:
        walk.emit("unmark", call.node, **common)
        return Val(text=result)
    if name in _PUSHES:
        walk.emit("effect", call.node, effect=Effect("publish", f"pushes onto {_named(key)}"), **common)
        return Val(text=result)
    if name in ("execute", "pipeline"):
        pending = [op for op in walk.trace.ops if op.store == "redis" and op.kind == "mark"]
        return Val(text=result, origin=tuple(pending[-1:]), tag=call.target.tag)
    return None


def _members(member: Val) -> str:
    return ",".join(member.fields) if member.fields else member.text


def _named(key: Val) -> str:
    return f"{key.string!r}" if key.string else "a key"


def _atomic(call: Call, name: str) -> bool:
    if name in ("setnx", "hsetnx", "sadd", "getset"):
        return True
    nx = call.keywords.get("nx")
    if nx is not None:
        return nx.literal is not False
    return any(isinstance(each.literal, str) and each.literal.upper() == "NX" for each in call.args[2:])


def _expires(call: Call, name: str) -> bool | None:
    if name in ("setex", "psetex"):
        return True
    if any(word in call.keywords for word in _EXPIRY) or "**" in call.keywords:
        return True
    if name == "set" and len(call.args) > 2:
        return True
    return None if name in ("hset", "zadd") else False


def _seconds(call: Call, name: str) -> float | None:
    value, unit = None, 1.0
    if name in ("setex", "psetex"):
        value, unit = call.argument(1, "time", "time_ms"), 1.0 if name == "setex" else 0.001
    elif name == "set":
        for word, factor in (("ex", 1.0), ("px", 0.001)):
            if word in call.keywords:
                value, unit = call.keywords[word], factor
        if value is None and len(call.args) > 2:
            value = call.args[2]
    return seconds_of(value, unit)


def seconds_of(value: Val | None, unit: float = 1.0) -> float | None:
    """A duration that is written out: seconds, or a timedelta."""
    if value is None:
        return None
    if isinstance(value.literal, int | float) and not isinstance(value.literal, bool):
        return float(value.literal) * unit
    return None


def _expire(walk: Calls, call: Call, key: Val, time: Val | None) -> None:
    """An expiry that is set afterwards belongs to the record before it."""
    for op in reversed(walk.trace.ops):
        if op.store == "redis" and op.kind in ("mark", "effect") and op.location.partition("/")[0] == key.text:
            op.expires = True
            op.seconds = op.seconds or seconds_of(time)
            return


def _script(walk: Calls, call: Call) -> Val:
    """A Lua script decides by itself what it does; where its answer is looked at, it is trusted."""
    op = walk.emit("read", call.node, text=call.shown, store="opaque", location=call.receiver.text, dedup=True)
    return Val(text=f"{call.shown}()", origin=(op,))


def _cache(walk: Calls, call: Call, name: str) -> Val | None:
    if name == "cache":
        return None
    key = call.argument(0, "key") or Val()
    common = {
        "text": call.shown,
        "store": "cache",
        "location": key.text,
        "key": key,
        "dedup": dedupish(key.string or key.text),
    }
    base = name.removeprefix("a")
    if base in ("get", "has_key"):
        return Val(text=f"cache({key.text})", origin=(walk.emit("read", call.node, **common),))
    if base in ("dd", "add") or name == "aadd":
        op = walk.emit(
            "mark", call.node, atomic=True, expires=True, seconds=seconds_of(call.argument(2, "timeout")), **common
        )
        return Val(text=f"cache({key.text})", origin=(op,))
    if base == "set":
        op = walk.emit("mark", call.node, expires=True, seconds=seconds_of(call.argument(2, "timeout")), **common)
        return Val(text=f"cache({key.text})", origin=(op,))
    if base == "delete":
        walk.emit("unmark", call.node, **common)
        return Val()
    if base in ("incr", "decr"):
        op = walk.emit("effect", call.node, effect=Effect("counter", f"counts up {_named(key)}"), atomic=True, **common)
        return Val(origin=(op,))
    return Val(text="cache", tag="lock") if name == "lock" else None


# -- DynamoDB

_GROWS = re.compile(r"\bADD\b|(\S+)\s*=\s*(?:if_not_exists\s*\([^)]*\)|\1)\s*[-+]|list_append", re.IGNORECASE)


def _dynamo(walk: Calls, call: Call, name: str) -> Val | None:
    table = call.keywords.get("TableName")
    if table is None and call.tag == "dynamo.table" and call.receiver.items:
        table = call.receiver.items[0]
    location = (table.string if table is not None and table.string else None) or call.receiver.text
    condition = call.keywords.get("ConditionExpression")
    item = call.keywords.get("Item") or call.keywords.get("Key")
    key = next(iter((item.fields or {}).values()), item) if item is not None else None
    common = {
        "text": call.shown,
        "store": "dynamo",
        "location": location,
        "key": key,
        "dedup": dedupish(location) or _dedup_key(item),
    }
    if name in ("get_item", "query"):
        if name == "query" and call.tag not in ("dynamo.table", "aws.dynamodb"):
            return None
        return Val(text=f"{location}.get_item()", origin=(walk.emit("read", call.node, **common),))
    if name == "put_item" and condition is not None:
        return Val(origin=(_held(walk, walk.emit("claim", call.node, atomic=True, **common)),))
    if name == "put_item":
        return Val(origin=(walk.emit("mark" if common["dedup"] else "write", call.node, **common),))
    if name == "update_item":
        expression = call.keywords.get("UpdateExpression")
        text = expression.string if expression is not None else None
        if condition is not None:
            return Val(origin=(_held(walk, walk.emit("claim", call.node, atomic=True, **common)),))
        if text and _GROWS.search(text):
            return Val(
                origin=(
                    walk.emit(
                        "effect", call.node, effect=Effect("counter", f"adds to an item of {location}"), **common
                    ),
                )
            )
        return Val(origin=(walk.emit("write", call.node, **common),))
    if name == "delete_item":
        return Val(origin=(walk.emit("unmark", call.node, **common),))
    if name == "transact_write_items":
        op = walk.emit("claim", call.node, atomic=True, **common)
        return Val(origin=(_held(walk, op),))
    return None


def _dedup_key(item: Val | None) -> bool:
    return bool(item is not None and item.fields and any(dedupish(name) for name in item.fields))


def _held(walk: Calls, op: Op) -> Op:
    walk.hold((op,), "raise")
    return op


# -- MongoDB


def _mongo(walk: Calls, call: Call, name: str) -> Val | None:
    location = call.receiver.text
    first = call.argument(0, "filter", "document", "documents")
    common = {
        "text": call.shown,
        "store": "mongo",
        "location": location,
        "dedup": dedupish(location.rpartition(".")[2]),
    }
    own = (first.fields or {}).get("_id") if first is not None else None
    common["key"] = own or (next(iter((first.fields or {}).values()), None) if first is not None else None)
    if name in ("find_one", "count_documents", "find"):
        return Val(text=f"{location}.{name}()", origin=(walk.emit("read", call.node, **common),), tag="mongo.document")
    if name in ("insert_one", "insert_many"):
        if walk.unique_tries or common["dedup"] or (own is not None and own.taint and not _made_up(own)):
            return Val(origin=(_held(walk, walk.emit("claim", call.node, atomic=True, **common)),))
        return Val(
            origin=(walk.emit("effect", call.node, effect=Effect("counter", f"inserts into {location}"), **common),)
        )
    if name in ("update_one", "update_many", "find_one_and_update"):
        change = call.argument(1, "update")
        grows = [word for word in ("$inc", "$push", "$mul") if change is not None and word in (change.fields or {})]
        sets = (change.fields or {}).get("$set") if change is not None else None
        cas = bool(sets and sets.fields and first is not None and first.fields and set(sets.fields) & set(first.fields))
        upsert = call.keywords.get("upsert")
        if grows and not cas:
            return Val(
                origin=(
                    walk.emit(
                        "effect",
                        call.node,
                        effect=Effect("counter", f"adds to a document of {location} ({grows[0]})"),
                        **common,
                    ),
                )
            )
        fresh = upsert is not None and change is not None and "$setOnInsert" in (change.fields or {})
        op = walk.emit("mark" if cas or fresh or common["dedup"] else "write", call.node, atomic=cas or fresh, **common)
        return Val(text=f"{location}.{name}()", origin=(op,))
    if name in ("delete_one", "delete_many"):
        return Val(origin=(walk.emit("unmark", call.node, **common),))
    return None


def _made_up(value: Val) -> bool:
    return any(each.startswith("unstable:") for each in value.taint)


# -- containers of this process


def _memory(walk: Calls, call: Call, name: str) -> Val | None:
    container = call.receiver
    if name in ("add", "append", "appendleft", "setdefault") and call.args and walk.outlives(container):
        walk.emit("mark", call.node, text=call.shown, store="memory", location=container.text, key=call.args[0])
        return Val(literal=None)
    if name in ("discard", "remove", "pop", "clear"):
        walk.emit("unmark", call.node, text=call.shown, store="memory", location=container.text)
        return Val()
    if (
        name in ("get", "__contains__", "count", "index")
        and call.args
        and walk.outlives(container)
        and not container.fields
    ):
        op = walk.emit("read", call.node, text=call.shown, store="memory", location=container.text, key=call.args[0])
        return Val(text=f"{container.text}.{name}()", origin=(op,))
    if name in ("extend", "update", "copy", "keys"):
        return replace(container, text=f"{container.text}.{name}()") if name == "copy" else None
    return None


def item_set(walk: Calls, target: ast.Subscript, container: Val, key: Val) -> None:
    """`seen[id] = True`: a record in this process's memory."""
    if container.tag == "dict" and walk.outlives(container) and container.text != "{…}":
        walk.emit("mark", target, text=ast.unparse(target), store="memory", location=container.text, key=key)


def item_deleted(walk: Calls, target: ast.expr) -> None:
    if isinstance(target, ast.Subscript):
        container = walk.value(target.value)
        if container.tag == "dict":
            walk.emit("unmark", target, store="memory", location=container.text)
