"""Redis: keys that are looked up, claimed, recorded, counted up, and how long they are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from effectonce_lint.durations import parse_duration
from effectonce_lint.python.values import Effect, Value
from effectonce_lint.word_lists import word_set

from .object_types import is_dedup_name

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_READS = word_set("get exists sismember hget hexists zscore smismember getbit lpos ttl")
_MARKS = word_set("set setnx setex psetex getset hsetnx hset sadd zadd")
_CLAIMS = word_set("setnx hsetnx sadd getset")
"""Of those: what tells the first from the second by itself."""
_COUNTERS = word_set("incr incrby incrbyfloat decr decrby hincrby hincrbyfloat zincrby")
_PUSHES = word_set("lpush rpush lpushx rpushx")
_DELETES = word_set("delete srem hdel unlink zrem")
_OF_MEMBERS = word_set("sismember sadd srem hget hexists hsetnx hset hdel zscore zadd")
_ONLY_REDIS = word_set(
    "setnx sismember hsetnx sadd srem hincrby incrby incrbyfloat hexists zincrby zadd lpush rpush setex psetex decrby"
)
_ANY_STORE = _READS | _COUNTERS | _PUSHES | word_set("set expire delete")
_NAMES = word_set("redis redis_client redis_conn rdb redis_cli")
_EXPIRIES = word_set("ex px exat pxat keepttl expire timeout ttl **")


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    tag, name = call.tag, call.name
    script = "redis.script" in (call.target.tag, tag) and name != "register_script"
    if script or (tag == "redis" and name in ("eval", "evalsha")):
        return _interpret_script(walk, call)
    unseen = not tag and not call.ref and call.target.function is None
    if tag == "redis" or (unseen and _is_redis(call)):
        if name == "execute_command" and call.args and call.args[0].string is not None:
            return _interpret_command(walk, replace(call, args=call.args[1:]), call.args[0].string.lower())
        return _interpret_command(walk, call, name)
    return None


def _is_redis(call: Call) -> bool:
    """A client out of sight that is used as only Redis is, or has the name that everybody gives it."""
    if call.name == "set" and call.keywords.keys() & {"nx", "ex", "px"}:
        return True
    named = call.receiver.text.rpartition(".")[2].lower().strip("_") in _NAMES
    return call.name in _ONLY_REDIS or (named and call.name in _ANY_STORE)


def _interpret_command(walk: CallWalker, call: Call, name: str) -> Value | None:
    key = call.argument(0, "name", "key") or Value()
    member = call.args[1] if len(call.args) > 1 and name in _OF_MEMBERS else None
    location = key.text
    if member is not None:
        location += "/" + (",".join(member.fields) if member.fields else member.text)
    common: dict[str, Any] = {"text": call.source_text, "store": "redis", "location": location}
    common["key"] = member if member is not None and member.taint else key
    common["dedup"] = is_dedup_name(key.string or key.text) or is_dedup_name(location)
    what = f"{key.string!r}" if key.string else "a key"
    if name in _READS:
        op = walk.emit("read", call.node, **common)
    elif name in _MARKS:
        kept = {"expires": _has_expiry(call, name), "seconds": _expiry_seconds(call, name)}
        op = walk.emit("mark", call.node, atomic=_is_claim(call, name), **kept, **common)
    elif name in _COUNTERS:
        effect = Effect("counter", f"counts up {what}")
        op = walk.emit("effect", call.node, effect=effect, expires=False, atomic=True, **common)
    elif name in _PUSHES:
        op = walk.emit("effect", call.node, effect=Effect("publish", f"pushes onto {what}"), **common)
    elif name in _DELETES:
        op = walk.emit("unmark", call.node, **common)
    elif name in ("expire", "pexpire", "expireat"):
        _set_expiry(walk, key, call.argument(1, "time"))
        return Value()
    elif name == "execute":  # of a pipeline: the answer to what was put into it
        pending = [op for op in walk.trace.ops if op.store == "redis" and op.kind == "mark"]
        return Value(text=call.source_text, origin=tuple(pending[-1:]))
    else:
        return None
    return Value(text=f"{call.source_text}({location})", origin=(op,), tag="redis.value")


def _is_claim(call: Call, name: str) -> bool:
    """Whether a write tells the first from the second: SETNX, SADD, SET with NX."""
    if name in _CLAIMS:
        return True
    nx = call.keywords.get("nx")
    if nx is not None:
        return nx.literal is not False
    return any((each.string or "").upper() == "NX" for each in call.args[2:])


def _has_expiry(call: Call, name: str) -> bool | None:
    if name in ("setex", "psetex") or call.keywords.keys() & _EXPIRIES or (name == "set" and len(call.args) > 2):
        return True
    return None if name in ("hset", "zadd") else False


def _expiry_seconds(call: Call, name: str) -> float | None:
    if name in ("setex", "psetex"):
        return seconds_of(call.argument(1, "time", "time_ms"), 1.0 if name == "setex" else 0.001)
    if "px" in call.keywords:
        return seconds_of(call.keywords["px"], 0.001)
    return seconds_of(call.argument(2, "ex")) if name == "set" else None


def seconds_of(value: Value | None, unit: float = 1.0) -> float | None:
    """A duration that is written out: seconds, a timedelta, `"30d"`."""
    literal = value.literal if value is not None else None
    if isinstance(literal, str):
        literal = parse_duration(literal)
    return float(literal) * unit if isinstance(literal, int | float) and not isinstance(literal, bool) else None


def _set_expiry(walk: CallWalker, key: Value, time: Value | None) -> None:
    """An expiry that is set afterwards belongs to the record before it."""
    for op in reversed(walk.trace.ops):
        if op.store == "redis" and op.kind in ("mark", "effect") and op.location.partition("/")[0] == key.text:
            op.expires = True
            op.seconds = op.seconds or seconds_of(time)
            return


def _interpret_script(walk: CallWalker, call: Call) -> Value:
    """Interpret a Lua script. It is opaque; where the code checks its answer, it counts as a claim."""
    op = walk.emit("read", call.node, text=call.source_text, store="opaque", location=call.receiver.text, dedup=True)
    return Value(text=f"{call.source_text}()", origin=(op,))
