"""Methods of plain values (strings, dicts, messages) that return a part of the value, or convert it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import UNKNOWN_LITERAL, Value
from effectonce_lint.python.walk_state import taints_of
from effectonce_lint.word_lists import word_set

from . import standard_library
from .message_parts import mark_message_part

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_CONVERSIONS = word_set(
    "hexdigest digest decode encode strip lower upper hex join format replace split rsplit zfill isoformat strftime"
    " timestamp get pop setdefault items values keys copy title casefold lstrip rstrip removeprefix removesuffix ljust"
    " rjust model_dump model_dump_json dict json to_dict as_dict value key offset get_json get_data read body as_tuple"
    " urn total_seconds body_as_str headers partition rpartition splitlines first last tobytes astimezone date time_ns"
)
_MESSAGE_PARTS = word_set("value key offset body headers json get_json read")
"""The ones that return a part of a message instead of converting it."""
_AMBIGUOUS_NAMES = word_set("first last read key value offset headers body date json dict copy")
_LITERAL_CONVERSIONS = word_set("strip lower upper lstrip rstrip encode decode replace")
_MESSAGE_FAMILIES = word_set("kafka pika aiopika sqs nats asb lambda stream:kafka web pubsub dict")
_STORE_TAGS = word_set("redis cache aiopika.queue sql.session orm.query http")
_LIBRARY_TAGS = ("sa.", "orm.", "sql.", "mongo.", "eo.", "aws.")


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a method of a plain value; None for other calls."""
    receiver, name = call.receiver, call.target.attr
    if name == "update" and receiver.text.startswith("hashlib."):
        receiver.taint |= standard_library.taint_of_hash(taints_of(*call.args))
        return Value(literal=None)
    if name not in _CONVERSIONS or call.target.function is not None or receiver.tag.startswith(_LIBRARY_TAGS):
        return None
    text = walk.text(receiver.text, ".", name, "(", ",".join(argument.text for argument in call.all_arguments()), ")")
    if name == "join" and call.args:
        return Value(text=text, taint=taints_of(*call.args))
    if name == "total_seconds" or (name in _LITERAL_CONVERSIONS and receiver.string is not None):
        return replace(receiver, text=text)
    if name == "format" and receiver.string is not None:
        return Value(text=text, literal=receiver.literal, taint=taints_of(receiver, *call.all_arguments()))
    if name in ("get", "pop", "setdefault"):
        return _interpret_get(walk, call, text)
    if name in ("items", "values", "keys") and receiver.fields is not None:
        if name == "items":
            return Value(text=text, tag="dict.items", fields=receiver.fields, taint=receiver.taint)
        values = tuple(receiver.fields.values()) if name == "values" else ()
        return Value(text=text, tag="list", items=values, taint=receiver.taint)
    return _interpret_conversion(call, text)


def _interpret_get(walk: CallWalker, call: Call, text: str) -> Value | None:
    """`data.get("id")` is an item, unless ``data`` is a store."""
    receiver = call.receiver
    is_library = receiver.ref.partition(".")[0] in ("requests", "httpx", "django")
    if not call.args or is_library or receiver.tag in _STORE_TAGS:
        return None
    key = call.args[0]
    if key.literal is UNKNOWN_LITERAL and receiver.fields is None and receiver.tag != "dict" and not receiver.taint:
        return None
    value = walk.item(receiver, key)
    is_empty = receiver.tag == "dict" and not receiver.fields and not value.taint and not value.is_known()
    if is_empty and len(call.args) > 1:
        return replace(call.args[1], origin=value.origin, base=receiver)
    return replace(value, text=text)


def _interpret_conversion(call: Call, text: str) -> Value | None:
    receiver, name = call.receiver, call.target.attr
    if name in _AMBIGUOUS_NAMES and not receiver.taint:
        return None
    may_be_plain = (
        not receiver.tag or receiver.tag.partition(".")[0] in _MESSAGE_FAMILIES or receiver.tag.startswith("redis.")
    )
    is_library = (
        receiver.ref and receiver.tag != "web.request"
    )  # a request is an object, although its ref is a name in a library
    if is_library or receiver.function is not None or not may_be_plain:
        return None
    if call.target.tag:
        return Value(text=text, tag=call.target.tag, taint=call.target.taint, origin=receiver.origin)
    taint = (
        call.target.taint if name in _MESSAGE_PARTS and receiver.taint else taints_of(receiver, *call.all_arguments())
    )
    value = Value(text=text, taint=taint, origin=receiver.origin, base=receiver)
    if name in ("items", "values") and receiver.tag in ("kafka.message", "redis.entries"):
        value.tag = receiver.tag
    if receiver.taint and name in ("offset", "value", "key"):
        mark_message_part(value, receiver, name)
    return value
