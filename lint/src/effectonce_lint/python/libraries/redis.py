"""Redis: commands that look up, claim, record or count up keys, and how long the keys are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.durations import parse_duration
from effectonce_lint.python.values import Effect, OperationTarget, Value
from effectonce_lint.word_lists import word_set

from .object_types import is_dedup_name

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_READ_COMMANDS = word_set("get exists sismember hget hexists zscore smismember getbit lpos ttl")
_WRITE_COMMANDS = word_set("set setnx setex psetex getset hsetnx hset sadd zadd")
_CLAIM_COMMANDS = word_set("setnx hsetnx sadd getset")
"""The write commands whose answer tells the first delivery from the second."""
_COUNTER_COMMANDS = word_set("incr incrby incrbyfloat decr decrby hincrby hincrbyfloat zincrby")
_PUSH_COMMANDS = word_set("lpush rpush lpushx rpushx")
_DELETE_COMMANDS = word_set("delete srem hdel unlink zrem")
_MEMBER_COMMANDS = word_set("sismember sadd srem hget hexists hsetnx hset hdel zscore zadd")
_ONLY_REDIS_COMMANDS = word_set(
    "setnx sismember hsetnx sadd srem hincrby incrby incrbyfloat hexists zincrby zadd lpush rpush setex psetex decrby"
)
_COMMON_COMMANDS = _READ_COMMANDS | _COUNTER_COMMANDS | _PUSH_COMMANDS | word_set("set expire delete")
_CLIENT_NAMES = word_set("redis redis_client redis_conn rdb redis_cli")
_EXPIRY_ARGUMENTS = word_set("ex px exat pxat keepttl expire timeout ttl **")


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a command of Redis; None for other calls."""
    tag, name = call.tag, call.name
    is_script = "redis.script" in (call.target.tag, tag) and name != "register_script"
    if is_script or (tag == "redis" and name in ("eval", "evalsha")):
        return _interpret_script(walk, call)
    is_unknown = not tag and not call.ref and call.target.function is None
    if tag == "redis" or (is_unknown and _is_redis(call)):
        if name == "execute_command" and call.args and call.args[0].string is not None:
            return _interpret_command(walk, replace(call, args=call.args[1:]), call.args[0].string.lower())
        return _interpret_command(walk, call, name)
    return None


def _is_redis(call: Call) -> bool:
    """Whether an object of an unknown type is a client of Redis, by its commands or its name."""
    if call.name == "set" and call.keywords.keys() & {"nx", "ex", "px"}:
        return True
    has_usual_name = call.receiver.text.rpartition(".")[2].lower().strip("_") in _CLIENT_NAMES
    return call.name in _ONLY_REDIS_COMMANDS or (has_usual_name and call.name in _COMMON_COMMANDS)


def _interpret_command(walk: CallWalker, call: Call, name: str) -> Value | None:
    key = call.argument(0, "name", "key") or Value()
    member = call.args[1] if len(call.args) > 1 and name in _MEMBER_COMMANDS else None
    location = key.text
    if member is not None:
        location += "/" + (",".join(member.fields) if member.fields else member.text)
    description: OperationTarget = {"text": call.source_text, "store": "redis", "location": location}
    description["key"] = member if member is not None and member.taint else key
    description["dedup"] = is_dedup_name(key.string or key.text) or is_dedup_name(location)
    key_name = f"{key.string!r}" if key.string else "a key"
    if name in _READ_COMMANDS:
        op = walk.emit("read", call.node, **description)
    elif name in _WRITE_COMMANDS:
        expires, seconds = _has_expiry(call, name), _expiry_seconds(call, name)
        is_claim = _is_claim(call, name)
        op = walk.emit("mark", call.node, atomic=is_claim, expires=expires, seconds=seconds, **description)
    elif name in _COUNTER_COMMANDS:
        effect = Effect("counter", f"counts up {key_name}")
        op = walk.emit("effect", call.node, effect=effect, expires=False, atomic=True, **description)
    elif name in _PUSH_COMMANDS:
        op = walk.emit("effect", call.node, effect=Effect("publish", f"pushes onto {key_name}"), **description)
    elif name in _DELETE_COMMANDS:
        op = walk.emit("unmark", call.node, **description)
    elif name in ("expire", "pexpire", "expireat"):
        _set_expiry(walk, key, call.argument(1, "time"))
        return Value()
    elif name == "execute":  # of a pipeline: the answers to the commands before it
        pending = [op for op in walk.trace.ops if op.store == "redis" and op.kind == "mark"]
        return Value(text=call.source_text, origin=tuple(pending[-1:]))
    else:
        return None
    return Value(text=f"{call.source_text}({location})", origin=(op,), tag="redis.value")


def _is_claim(call: Call, name: str) -> bool:
    """Whether a write tells the first delivery from the second: SETNX, SADD, SET with NX."""
    if name in _CLAIM_COMMANDS:
        return True
    nx = call.keywords.get("nx")
    if nx is not None:
        return nx.literal is not False
    return any((argument.string or "").upper() == "NX" for argument in call.args[2:])


def _has_expiry(call: Call, name: str) -> bool | None:
    """Whether a write sets an expiry; None for commands that cannot set one."""
    if (
        name in ("setex", "psetex")
        or call.keywords.keys() & _EXPIRY_ARGUMENTS
        or (name == "set" and len(call.args) > 2)
    ):
        return True
    return None if name in ("hset", "zadd") else False


def _expiry_seconds(call: Call, name: str) -> float | None:
    if name in ("setex", "psetex"):
        return seconds_of(call.argument(1, "time", "time_ms"), 1.0 if name == "setex" else 0.001)
    if "px" in call.keywords:
        return seconds_of(call.keywords["px"], 0.001)
    return seconds_of(call.argument(2, "ex")) if name == "set" else None


def seconds_of(value: Value | None, unit: float = 1.0) -> float | None:
    """The seconds of a duration that is a literal: a number, a timedelta, `"30d"`."""
    literal = value.literal if value is not None else None
    if isinstance(literal, str):
        literal = parse_duration(literal)
    return float(literal) * unit if isinstance(literal, int | float) and not isinstance(literal, bool) else None


def _set_expiry(walk: CallWalker, key: Value, time: Value | None) -> None:
    """Apply `EXPIRE key` to the last record of that key."""
    for op in reversed(walk.trace.ops):
        if op.store == "redis" and op.kind in ("mark", "effect") and op.location.partition("/")[0] == key.text:
            op.expires = True
            op.seconds = op.seconds or seconds_of(time)
            return


def _interpret_script(walk: CallWalker, call: Call) -> Value:
    """Interpret a Lua script. It is opaque; where the code checks its answer, it counts as a claim."""
    op = walk.emit("read", call.node, text=call.source_text, store="opaque", location=call.receiver.text, dedup=True)
    return Value(text=f"{call.source_text}()", origin=(op,))
