"""BabelQueue's envelope, schema version 1: the SDKs of other languages on the same queue write and read it.

``type`` is the URN, ``meta.id`` the id and the key. The envelope has no place for a key that is not the id and for an
ordering key: these go into ``meta.ext.effectonce``. Members that this release does not know are kept in the message's
header ``bq-envelope``, and written again when the message is sent on.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Raw

from effectonce.babelqueue import headers as names
from effectonce.contracts import Packet
from effectonce.envelopes.common import DEFAULT_MAX_BODY_BYTES, body_too_large, make_packet, read_json, write_json
from effectonce.errors import ConfigurationError, Undecodable, show
from effectonce.message import BYPASS, REDRIVEN, Message

from .bindings import BabelQueuePacket
from .dead_letters import Pairs, refuse_constant

SCHEMA_VERSION: Final = 1
LANG: Final = "python"
#: ASCII whitespace only; `str.strip` would take more away: to the contract a job of one EM SPACE is a job.
BLANK: Final = " \t\n\v\f\r"
ENVELOPE: Final = "bq-envelope"
REPLAY: Final = "bq-replay-bypass"

_MEMBER_ORDER = ("job", "trace_id", "data", "meta", "attempts")
_CORE_META = ("id", "queue", "lang", "schema_version", "created_at")
_FORBIDDEN = (("", "timestamp"), *(("meta", name) for name in ("max_retries", "attempts", "source", "ts")))

_members = msgspec.json.Decoder(dict[str, Raw])
_to_json = msgspec.json.Encoder().encode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

log = logging.getLogger("effectonce")


class BabelQueue:
    """BabelQueue's envelope.

    ``meta`` is written into every message, beside the envelope's own members there: a vendor's block belongs under
    ``{"ext": {"acme": …}}``.

    ``data`` is a JSON object, and ``type`` a URN. ``meta.created_at`` is the message's ``time``, else that of its id
    (a UUIDv7, unless you mint your own), else now; ``trace_id`` is the message's, else its id.
    """

    #: The headers that make BabelQueue's consumers, in every language, skip external effects.
    bypass: Final = {REPLAY: "1"}

    def __init__(self, *, meta: Mapping[str, Any] | None = None, max_body: int = DEFAULT_MAX_BODY_BYTES) -> None:
        for name in meta or ():
            if name in _CORE_META or ("meta", name) in _FORBIDDEN:
                raise ConfigurationError(f"meta= cannot set /meta/{name}: the envelope writes it, or forbids it")
        self._meta = {name: Raw(_to_json(value)) for name, value in (meta or {}).items()}
        self.max_body = max_body

    # -- writing

    def encode(self, message: Message[Any], queue: str = "") -> Packet:
        urn = message.type.strip(BLANK)
        if not urn:
            raise ConfigurationError(f"message {show(message.id)} has no type; give it a URN, as BabelQueue needs")
        data = write_json(message.data, message)
        if data[:1] != b"{":
            raise ConfigurationError(
                f"the data of message {show(message.id)} is not a JSON object, as BabelQueue needs; send a dict"
            )
        trace, attempts = (message.trace_id or "").strip(BLANK) or message.id, message.attempt - 1
        known = _members_read_before(message)
        meta = self._make_meta(message, _members.decode(known["meta"]) if "meta" in known else None, queue)
        body: dict[str, Any] = known or dict.fromkeys(_MEMBER_ORDER)
        body.update(job=urn, trace_id=trace, data=Raw(data), meta=meta, attempts=attempts)
        headers = names.other_headers(message.headers)
        headers.pop(ENVELOPE, None)
        if headers.get(REDRIVEN, "").startswith(BYPASS):
            headers |= self.bypass
        headers |= {
            "content-type": names.JSON,
            names.JOB: urn,
            names.TRACE: trace,
            names.ID: message.id,
            names.VERSION: str(SCHEMA_VERSION),
            names.LANG: str(_value(meta, "lang") or ""),
            names.ATTEMPTS: str(attempts),
            names.CREATED: str(_value(meta, "created_at") or 0),
        }
        return make_packet(message, _to_json(body), headers, self.max_body, BabelQueuePacket)

    def _make_meta(self, message: Message[Any], known: dict[str, Raw] | None, queue: str) -> dict[str, Raw]:
        meta = known
        if meta is None:
            values = (message.id, queue or "default", LANG, SCHEMA_VERSION, _created_at(message))
            meta = {name: Raw(_to_json(value)) for name, value in zip(_CORE_META, values, strict=True)}
        meta |= self._meta
        ours: dict[str, str] = {}
        if message.key != message.id:
            ours["key"] = message.key
        if message.ordering_key is not None:
            ours["ordering_key"] = message.ordering_key
        ext = _object(meta, "ext")
        if ours:
            meta["ext"] = Raw(_to_json({**ext, "effectonce": ours}))
        return meta

    # -- reading

    def decode(self, packet: Packet, data_type: Any = Any) -> Message[Any]:
        if len(packet.body) > self.max_body:
            raise body_too_large(packet, self.max_body)
        headers = names.contract_headers(packet)
        version = headers.get(names.VERSION, "")
        if version.strip(BLANK) and version != str(SCHEMA_VERSION):
            raise Undecodable(f"its schema version is {show(version)!r}; this release reads {SCHEMA_VERSION}")
        defect = poison(packet.body)
        if defect is not None:
            raise Undecodable(f"this is not a BabelQueue message: {defect}")
        try:
            members = _members.decode(msgspec.json.format(packet.body, indent=-1))
            meta = _object(members, "meta")
        except (msgspec.DecodeError, RecursionError) as error:
            raise Undecodable(f"this is not a BabelQueue message: {show(error, 300)}") from error
        job = _take_urn(members)
        _drop_forbidden(members, meta)
        attempts, trace = _value(members, "attempts"), _value(members, "trace_id")
        if _value(meta, "schema_version") != SCHEMA_VERSION:
            written = bytes(meta.get("schema_version", Raw(b"missing"))).decode()
            raise Undecodable(f"its meta.schema_version is {show(written)}; this release reads {SCHEMA_VERSION}")
        if bytes(members.get("data", Raw(b"null")))[:1] != b"{":
            raise Undecodable("it has no data, which is a JSON object")
        if attempts is None or not (trace or "").strip(BLANK):
            raise Undecodable("it has no attempts, or no trace_id")
        ours = _object(_object(meta, "ext"), "effectonce")
        id = _value(meta, "id") or ""
        return Message(
            data=read_json(members["data"], data_type, "the data"),
            type=job,
            id=id,
            key=_text(ours, "key") or id,
            ordering_key=_text(ours, "ordering_key"),
            headers=_message_headers(headers, members, meta),
            trace_id=trace,
            attempt=_count_attempts(headers, attempts) + 1,
            time=_time(_value(meta, "created_at")),
        )

    def stable_headers(self, packet: Packet) -> dict[str, str]:
        """See `contracts.StableHeaders`."""
        return names.other_headers(names.contract_headers(packet))


def poison(body: bytes) -> str | None:
    """Why ``body`` can never be handled; None where it can.

    It is not one JSON object, a member that the envelope knows is of the wrong type, or no member names what it is. A
    repeated member is checked each time, and its last value counts.
    """
    try:
        parsed = json.loads(
            body.decode(), object_pairs_hook=Pairs, parse_int=_parse_int, parse_constant=refuse_constant
        )
    except (ValueError, RecursionError) as error:
        return f"it is not JSON ({show(error) or type(error).__name__})"
    if not isinstance(parsed, Pairs):
        return "it is JSON, but not an object"
    wrong = _find_wrong_member(parsed, _MEMBER_TYPES, "")
    if wrong is not None:
        return wrong
    members = dict(parsed)
    if not any(_is_urn(members.get(name)) for name in ("job", "urn")):
        return "it has no job and no urn that names what it is"
    return None


# -- members that are kept for sending on


def _members_read_before(message: Message[Any]) -> dict[str, Raw]:
    """The members of the envelope that ``message`` was read from, in their order, without the data; none where it is
    new."""
    text = message.headers.get(ENVELOPE)
    if text is None:
        return {}
    try:
        members = _members.decode(text)
        meta = _object(members, "meta")
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"the header {ENVELOPE} of message {show(message.id)} was not written by effectonce ({error}); remove it"
        ) from error
    if (_value(meta, "id") or "") != message.id:
        return {}  # copied from another message, with the rest of its headers
    for container, name in (*_FORBIDDEN, ("", "urn")):
        if name in (meta if container else members):
            place = f"/{container}/{name}" if container else f"/{name}"
            raise ConfigurationError(
                f"message {show(message.id)} carries {place}, which the contract forbids; remove it from {ENVELOPE}"
            )
    return members


def _message_headers(headers: Mapping[str, str], members: dict[str, Raw], meta: dict[str, Raw]) -> dict[str, str]:
    kept = names.other_headers(headers)
    if kept.pop(REPLAY, ""):
        kept[REDRIVEN] = BYPASS
    kept[ENVELOPE] = _to_json({**members, "data": None, "meta": meta}).decode()
    return kept


def _take_urn(members: dict[str, Raw]) -> str:
    """The URN, which becomes the member ``job``; the older member ``urn`` is removed."""
    job, urn = _text(members, "job"), _text(members, "urn")
    if "job" in members and job is None:
        log.warning("a BabelQueue message has a /job that is not a string; it is ignored")
    if "urn" in members:
        del members["urn"]
        if _is_urn(job):
            log.warning("a BabelQueue message has a /job and a /urn; the /urn is dropped")
    name = job if job is not None and _is_urn(job) else urn or ""
    members["job"] = Raw(_to_json(name))
    return name


def _drop_forbidden(members: dict[str, Raw], meta: dict[str, Raw]) -> None:
    for container, name in _FORBIDDEN:
        if (meta if container else members).pop(name, None) is not None:
            place = f"/{container}/{name}" if container else f"/{name}"
            log.warning("a BabelQueue message has the forbidden member %s; it is dropped", place)


def _object(members: Mapping[str, Raw], name: str) -> dict[str, Raw]:
    """The members of a member that is an object; none where it is not."""
    raw = members.get(name)
    return _members.decode(raw) if raw is not None and bytes(raw)[:1] == b"{" else {}


def _value(members: Mapping[str, Raw], name: str) -> Any:
    raw = members.get(name)
    return None if raw is None else read_json(raw, Any, name)


def _text(members: Mapping[str, Raw], name: str) -> str | None:
    """A member that is a string; None for any other."""
    raw = members.get(name)
    return read_json(raw, str, name) if raw is not None and bytes(raw)[:1] == b'"' else None


def _count_attempts(headers: Mapping[str, str], written: int) -> int:
    """The attempts so far. A header outranks the body: on Kafka, whose records cannot be rewritten, it counts them."""
    text = headers.get(names.ATTEMPTS, "")
    return int(text) if text.isascii() and text.isdigit() else max(written, 0)


def _created_at(message: Message[Any]) -> int:
    if message.time is not None:
        if message.time.tzinfo is None:
            raise ConfigurationError(f"the time of message {show(message.id)} has no time zone: give it one")
        return max((message.time - _EPOCH) // timedelta(milliseconds=1), 0)
    digits = message.id.replace("-", "")
    if len(message.id) == 36 and digits[12:13] == "7":  # a UUIDv7 begins with its milliseconds
        try:
            return int(digits[:12], 16)
        except ValueError:
            pass
    return time.time_ns() // 1_000_000


def _time(millis: int | None) -> datetime | None:
    try:
        return None if millis is None else _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return None


# -- the shape


_HUGE_INTEGER = object()  # an integer too long to convert


def _parse_int(text: str) -> Any:
    return int(text) if len(text) < 4000 else _HUGE_INTEGER


_MEMBER_TYPES: dict[str, type[Any]] = {
    "trace_id": str,
    "attempts": int,
    "data": Pairs,
    "meta": Pairs,
    "dead_letter": Pairs,
}
_NESTED_MEMBER_TYPES: dict[str, dict[str, type[Any]]] = {
    "meta": {"id": str, "queue": str, "lang": str, "schema_version": int, "created_at": int},
    "dead_letter": {
        **dict.fromkeys(("reason", "error", "exception", "original_queue", "lang"), str),
        **dict.fromkeys(("failed_at", "attempts"), int),
    },
}


def _find_wrong_member(pairs: Pairs, types: Mapping[str, type[Any]], prefix: str) -> str | None:
    value: Any
    for name, value in pairs:
        wanted = types.get(name)
        if wanted is None or value is None:
            continue
        if type(value) is not wanted or (wanted is int and not -(1 << 63) <= value < 1 << 63):
            description = {str: "a string", int: "a 64-bit integer", Pairs: "an object"}[wanted]
            return f"its member {prefix}{name} is not {description}"
        if name == "data" and not prefix and not _is_finite(value):
            return "its data has a number that is not finite"
        if name in _NESTED_MEMBER_TYPES:
            nested = _find_wrong_member(value, _NESTED_MEMBER_TYPES[name], f"{name}.")
            if nested is not None:
                return nested
    return None


def _is_finite(root: Any) -> bool:
    unchecked = [root]
    while unchecked:
        value = unchecked.pop()
        if isinstance(value, Pairs):
            unchecked.extend(item for _, item in value)
        elif isinstance(value, list):
            unchecked.extend(value)
        elif value is _HUGE_INTEGER or (isinstance(value, float) and not math.isfinite(value)):
            return False
        elif type(value) is int:
            try:
                float(value)
            except OverflowError:
                return False
    return True


def _is_urn(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip(BLANK))
