"""BabelQueue's envelope, schema version 1: the SDKs of other languages on the same queue write and read it.

``type`` is the URN, ``meta.id`` the id and the key. The envelope has no place for a key that is not the id and for an
ordering key: these go into ``meta.ext.effectonce``. Members that this release does not know are kept in the message's
header ``bq-envelope``, and written again when the message is sent on.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
from msgspec import Raw

from effectonce.babelqueue import headers as names
from effectonce.contracts import Packet
from effectonce.envelopes.bodies import DEFAULT_MAX_BODY_BYTES, body_too_large, make_packet, read_json, write_json
from effectonce.errors import ConfigurationError, Undecodable, show
from effectonce.message import BYPASS, REDRIVEN, Message

from .bindings import BabelQueuePacket

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
        known = read_known_members(packet.body)
        members = _members.decode(msgspec.json.format(packet.body, indent=-1))
        meta = _object(members, "meta")
        job = _take_urn(known, members)
        _drop_forbidden(members, meta)
        if known.meta is None or known.meta.schema_version != SCHEMA_VERSION:
            raise Undecodable(f"its meta.schema_version is not {SCHEMA_VERSION}, which this release reads")
        if known.data is None:
            raise Undecodable("it has no data, which is a JSON object")
        if known.attempts is None or not (known.trace_id or "").strip(BLANK):
            raise Undecodable("it has no attempts, or no trace_id")
        ours = _object(_object(meta, "ext"), "effectonce")
        id = known.meta.id or ""
        return Message(
            data=read_json(members["data"], data_type, "the data"),
            type=job,
            id=id,
            key=_text(ours, "key") or id,
            ordering_key=_text(ours, "ordering_key"),
            headers=_message_headers(headers, members, meta),
            trace_id=known.trace_id,
            attempt=_count_attempts(headers, known.attempts) + 1,
            time=_time(known.meta.created_at),
        )

    def stable_headers(self, packet: Packet) -> dict[str, str]:
        """See `contracts.StableHeaders`."""
        return names.other_headers(names.contract_headers(packet))


def identity_of(body: bytes) -> tuple[str, str | None]:
    """The id and the ordering key that an envelope brings with it; none where ``body`` is not an envelope."""
    try:
        meta = _object(_members.decode(body), "meta")
        return _text(meta, "id") or "", _text(_object(_object(meta, "ext"), "effectonce"), "ordering_key")
    except (msgspec.DecodeError, Undecodable, RecursionError):
        return "", None


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
    message_headers = names.other_headers(headers)
    if message_headers.pop(REPLAY, ""):
        message_headers[REDRIVEN] = BYPASS
    message_headers[ENVELOPE] = _to_json({**members, "data": None, "meta": meta}).decode()
    return message_headers


def _take_urn(known: KnownMembers, members: dict[str, Raw]) -> str:
    """The URN, which becomes the member ``job``; the older member ``urn`` is removed."""
    if "job" in members and not isinstance(known.job, str):
        log.warning("a BabelQueue message has a /job that is not a string; it is ignored")
    if members.pop("urn", None) is not None and _is_urn(known.job):
        log.warning("a BabelQueue message has a /job and a /urn; the /urn is dropped")
    urn: str = known.job if _is_urn(known.job) else known.urn
    members["job"] = Raw(_to_json(urn))
    return urn


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

_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _KnownMeta(msgspec.Struct):
    id: str | None = None
    queue: str | None = None
    lang: str | None = None
    schema_version: _Int64 | None = None
    created_at: _Int64 | None = None


class _KnownDeadLetter(msgspec.Struct):
    reason: str | None = None
    error: str | None = None
    exception: str | None = None
    original_queue: str | None = None
    lang: str | None = None
    failed_at: _Int64 | None = None
    attempts: _Int64 | None = None


class KnownMembers(msgspec.Struct):
    """The members that the envelope knows, by their types. Any of them may be null or missing."""

    job: Any = None
    urn: Any = None
    trace_id: str | None = None
    attempts: _Int64 | None = None
    data: dict[str, Any] | None = None
    meta: _KnownMeta | None = None
    dead_letter: _KnownDeadLetter | None = None


_known_members = msgspec.json.Decoder(KnownMembers)
_HUGE_INTEGER = re.compile(r"[0-9]{309}")  # perhaps larger than the largest double; a larger float is never decoded


def read_known_members(body: bytes) -> KnownMembers:
    """The known members in ``body``. `Undecodable` where it can never be handled.

    It is not one JSON object, a known member is of the wrong type, or none names what it is. A repeated member is
    checked each time, and its last value counts.
    """
    try:
        text = body.decode()
        known = _known_members.decode(text)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"this is not a BabelQueue message: {show(error, 300)}") from error
    if not (_is_urn(known.job) or _is_urn(known.urn)):
        raise Undecodable("this is not a BabelQueue message: it has no job and no urn that names what it is")
    if _HUGE_INTEGER.search(text) and not _has_finite_data(text):
        raise Undecodable("this is not a BabelQueue message: its data has a number that is not finite")
    return known


def _has_finite_data(text: str) -> bool:
    """Whether every number in the data is finite to those who read numbers as doubles."""
    members = json.loads(text, object_pairs_hook=list, parse_int=float)
    return all(_is_finite(value) for name, value in members if name == "data")


def _is_finite(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _is_urn(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip(BLANK))
