"""Methods of plain values: strings, dicts, messages. They give a part of what they are called on, or another form."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import UNKNOWN, Val
from effectonce_lint.python.walk_state import taints
from effectonce_lint.word_lists import words

from . import standard_library
from .message_parts import part_of_message

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, Calls

_FORMS = words(
    "hexdigest digest decode encode strip lower upper hex join format replace split rsplit zfill isoformat strftime"
    " timestamp get pop setdefault items values keys copy title casefold lstrip rstrip removeprefix removesuffix ljust"
    " rjust model_dump model_dump_json dict json to_dict as_dict value key offset get_json get_data read body as_tuple"
    " urn total_seconds body_as_str headers partition rpartition splitlines first last tobytes astimezone date time_ns"
)
_PARTS = words("value key offset body headers json get_json read")
"""Of those: what gives a part of a message rather than another form of it."""
_ONLY_OF_MESSAGES = words("first last read key value offset headers body date json dict copy")
_KEEPS_TEXT = words("strip lower upper lstrip rstrip encode decode replace")
_MESSAGES = words("kafka pika aiopika sqs nats asb lambda stream:kafka web pubsub dict")
_STORES = words("redis cache aiopika.queue sql.session orm.query http")
_NOT_PLAIN = ("sa.", "orm.", "sql.", "mongo.", "eo.", "aws.")


def called(walk: Calls, call: Call) -> Val | None:
    receiver, name = call.receiver, call.target.attr
    if name == "update" and receiver.text.startswith("hashlib."):
        receiver.taint |= standard_library.hashed(taints(*call.args))
        return Val(literal=None)
    if name not in _FORMS or call.target.function is not None or receiver.tag.startswith(_NOT_PLAIN):
        return None
    text = walk.text(receiver.text, ".", name, "(", ",".join(each.text for each in call.all()), ")")
    if name == "join" and call.args:
        return Val(text=text, taint=taints(*call.args))
    if name == "total_seconds" or (name in _KEEPS_TEXT and receiver.string is not None):
        return replace(receiver, text=text)
    if name == "format" and receiver.string is not None:
        return Val(text=text, literal=receiver.literal, taint=taints(receiver, *call.all()))
    if name in ("get", "pop", "setdefault"):
        return _got(walk, call, text)
    if name in ("items", "values", "keys") and receiver.fields is not None:
        if name == "items":
            return Val(text=text, tag="dict.items", fields=receiver.fields, taint=receiver.taint)
        values = tuple(receiver.fields.values()) if name == "values" else ()
        return Val(text=text, tag="list", items=values, taint=receiver.taint)
    return _form(call, text)


def _got(walk: Calls, call: Call, text: str) -> Val | None:
    """`data.get("id")`: an item, unless it is a store that is asked."""
    receiver = call.receiver
    library = receiver.ref.partition(".")[0] in ("requests", "httpx", "django")
    if not call.args or library or receiver.tag in _STORES:
        return None
    asked = call.args[0]
    if asked.literal is UNKNOWN and receiver.fields is None and receiver.tag != "dict" and not receiver.taint:
        return None
    value = walk.item(receiver, asked)
    empty = receiver.tag == "dict" and not receiver.fields and not value.taint and not value.known()
    if empty and len(call.args) > 1:
        return replace(call.args[1], origin=value.origin, base=receiver)
    return replace(value, text=text)


def _form(call: Call, text: str) -> Val | None:
    receiver, name = call.receiver, call.target.attr
    if name in _ONLY_OF_MESSAGES and not receiver.taint:
        return None
    ours = not receiver.tag or receiver.tag.partition(".")[0] in _MESSAGES or receiver.tag.startswith("redis.")
    library = receiver.ref and receiver.tag != "web.request"  # that one is an object, not a name of the library's
    if library or receiver.function is not None or not ours:
        return None
    if call.target.tag:
        return Val(text=text, tag=call.target.tag, taint=call.target.taint, origin=receiver.origin)
    taint = call.target.taint if name in _PARTS and receiver.taint else taints(receiver, *call.all())
    value = Val(text=text, taint=taint, origin=receiver.origin, base=receiver)
    if name in ("items", "values") and receiver.tag in ("kafka.message", "redis.entries"):
        value.tag = receiver.tag
    if receiver.taint and name in ("offset", "value", "key"):
        part_of_message(value, receiver, name)
    return value
