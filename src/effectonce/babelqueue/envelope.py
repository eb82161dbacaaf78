"""BabelQueue's envelope, schema version 1, which the SDKs of other languages on the same queue read and write.

The message's ``type`` is the URN (the member ``job``), and ``meta.id`` is its id and its key. The envelope has no place
for a key that is not the id, or for an ordering key: these go into ``meta.ext.effectonce``. Members that this release
does not know are kept in the message's header ``bq-envelope``, and written again when the message is sent on.
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

from effectonce.babelqueue import headers as header_names
from effectonce.contracts import Packet
from effectonce.envelopes.bodies import DEFAULT_MAX_BODY_BYTES, body_too_large, make_packet, read_json, write_json
from effectonce.errors import ConfigurationError, Undecodable, show
from effectonce.message import BYPASS_PREFIX, REDRIVEN_HEADER, Message

from .bindings import BabelQueuePacket

SCHEMA_VERSION: Final = 1
SOURCE_LANGUAGE: Final = "python"
#: What the contract strips: ASCII white space only. (`str.strip` strips more: an EM SPACE, which may be a job's name.)
BLANK_CHARACTERS: Final = " \t\n\v\f\r"
#: The header of a message that was read: its envelope without the data, as JSON.
ENVELOPE_HEADER: Final = "bq-envelope"
REPLAY_HEADER: Final = "bq-replay-bypass"

_MEMBER_ORDER = ("job", "trace_id", "data", "meta", "attempts")
_CORE_META = ("id", "queue", "lang", "schema_version", "created_at")
#: Members that the contract forbids, in the envelope and in its ``meta``.
_FORBIDDEN_MEMBERS = ("timestamp",)
_FORBIDDEN_META = ("max_retries", "attempts", "source", "ts")

_members = msgspec.json.Decoder(dict[str, Raw])
_to_json = msgspec.json.Encoder().encode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

log = logging.getLogger("effectonce")


class BabelQueue:
    """BabelQueue's envelope.

    ``meta`` is written into every message, beside the envelope's own members there: a vendor's block belongs under
    ``{"ext": {"acme": …}}``.

    ``data`` is a JSON object, and ``type`` a URN. ``meta.created_at`` is the message's ``time``, else that of its id
    (a UUIDv7, unless you make your own), else now; ``trace_id`` is the message's, else its id.
    """

    #: The headers that make BabelQueue's consumers, in every language, skip external effects.
    bypass: Final = {REPLAY_HEADER: "1"}

    def __init__(self, *, meta: Mapping[str, Any] | None = None, max_body: int = DEFAULT_MAX_BODY_BYTES) -> None:
        for name in meta or ():
            if name in (*_CORE_META, *_FORBIDDEN_META):
                raise ConfigurationError(f"meta= cannot set /meta/{name}: the envelope writes it, or forbids it")
        self._meta = {name: Raw(_to_json(value)) for name, value in (meta or {}).items()}
        self.max_body = max_body

    # -- writing

    def encode(self, message: Message[Any], queue: str = "") -> Packet:
        if not message.type.strip(BLANK_CHARACTERS):
            raise ConfigurationError(f"message {show(message.id)} has no type; give it a URN, as BabelQueue needs")
        data = write_json(message.data, message)
        if data[:1] != b"{":
            raise ConfigurationError(
                f"the data of message {show(message.id)} is not a JSON object, as BabelQueue needs; send a dict"
            )
        attempts = message.attempt - 1
        earlier = _earlier_members(message)
        meta = self._make_meta(message, _members.decode(earlier["meta"]) if "meta" in earlier else None, queue)
        body: dict[str, Any] = earlier or dict.fromkeys(_MEMBER_ORDER)
        urn, trace = message.type, message.trace_id
        if not earlier:  # a message that is sent on keeps its own, blanks included
            urn = urn.strip(BLANK_CHARACTERS)
            trace = (trace or "").strip(BLANK_CHARACTERS) or message.id
        if trace is not None:
            body["trace_id"] = trace
        body.update(job=urn, data=Raw(data), meta=meta, attempts=attempts)
        headers = header_names.other_headers(message.headers)
        headers.pop(ENVELOPE_HEADER, None)
        if headers.get(REDRIVEN_HEADER, "").startswith(BYPASS_PREFIX):
            headers |= self.bypass
        headers |= {
            "content-type": header_names.JSON_CONTENT_TYPE,
            header_names.JOB: _header_text(urn),
            header_names.ID: message.id,
            header_names.VERSION: str(SCHEMA_VERSION),
            header_names.LANG: str(_read_member(meta, "lang") or ""),
            header_names.ATTEMPTS: str(attempts),
            header_names.CREATED: str(_read_member(meta, "created_at") or 0),
        }
        if trace is not None and trace.strip(BLANK_CHARACTERS):  # some brokers refuse a header that is empty
            headers[header_names.TRACE] = _header_text(trace)
        return make_packet(message, _to_json(body), headers, self.max_body, BabelQueuePacket)

    def _make_meta(self, message: Message[Any], earlier: dict[str, Raw] | None, queue: str) -> dict[str, Raw]:
        """Make the member ``meta``. ``earlier`` is that of the envelope that ``message`` was read from."""
        meta = earlier
        if meta is None:
            values = (message.id, queue or "default", SOURCE_LANGUAGE, SCHEMA_VERSION, _created_at(message))
            meta = {name: Raw(_to_json(value)) for name, value in zip(_CORE_META, values, strict=True)}
        meta |= self._meta
        own_extension: dict[str, str] = {}
        if message.key != message.id:
            own_extension["key"] = message.key
        if message.ordering_key is not None:
            own_extension["ordering_key"] = message.ordering_key
        if own_extension:
            meta["ext"] = Raw(_to_json({**_read_object(meta, "ext"), "effectonce": own_extension}))
        return meta

    # -- reading

    def decode(self, packet: Packet, data_type: Any = Any) -> Message[Any]:
        if len(packet.body) > self.max_body:
            raise body_too_large(packet, self.max_body)
        headers = header_names.contract_headers(packet)
        version = headers.get(header_names.VERSION, "")
        if version.strip(BLANK_CHARACTERS) and version != str(SCHEMA_VERSION):
            raise Undecodable(f"its schema version is {show(version)!r}; this release reads {SCHEMA_VERSION}")
        known = read_known_members(packet.body)
        members = _members.decode(msgspec.json.format(packet.body, indent=-1))
        meta = _read_object(members, "meta")
        job = _take_urn(known, members)
        for path in _drop_forbidden(members, meta):
            log.warning("a BabelQueue message has the forbidden member %s; it is dropped", path)
        # As BabelQueue's runtime: what is missing, or null, has a default. A version that we do not know has none.
        known_meta = known.meta or _KnownMeta()
        if known_meta.schema_version not in (None, SCHEMA_VERSION):
            raise Undecodable(
                f"its meta.schema_version is {known_meta.schema_version}; this release reads {SCHEMA_VERSION}"
            )
        own_extension = _read_object(_read_object(meta, "ext"), "effectonce")
        id = known_meta.id or ""
        return Message(
            data=read_json(b"{}" if known.data is None else members["data"], data_type, "the data"),
            type=job,
            id=id,
            key=_read_text(own_extension, "key") or id,
            ordering_key=_read_text(own_extension, "ordering_key"),
            headers=_message_headers(headers, members, meta),
            trace_id=known.trace_id,
            attempt=_count_attempts(headers, known.attempts or 0) + 1,
            time=_parse_millis(known_meta.created_at),
        )

    def stable_headers(self, packet: Packet) -> dict[str, str]:
        """See `contracts.StableHeaders`."""
        return header_names.other_headers(header_names.contract_headers(packet))


def identity_of(body: bytes) -> tuple[str, str | None]:
    """Read the id and the ordering key in an envelope; "" and None where ``body`` is not an envelope."""
    try:
        meta = _read_object(_members.decode(body), "meta")
        own_extension = _read_object(_read_object(meta, "ext"), "effectonce")
        return _read_text(meta, "id") or "", _read_text(own_extension, "ordering_key")
    except (msgspec.DecodeError, Undecodable, RecursionError):
        return "", None


# -- members that are kept until the message is sent on


def _earlier_members(message: Message[Any]) -> dict[str, Raw]:
    """The members of the envelope that ``message`` was read from, in their order, without the data; {} where the
    message is new."""
    text = message.headers.get(ENVELOPE_HEADER)
    if text is None:
        return {}
    try:
        members = _members.decode(text)
        meta = _read_object(members, "meta")
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"the header {ENVELOPE_HEADER} of message {show(message.id)} was not written by effectonce ({error}); "
            "remove it"
        ) from error
    if (_read_member(meta, "id") or "") != message.id:
        return {}  # the header was copied from another message
    forbidden = _drop_forbidden(dict(members), meta) or ["/urn"] * ("urn" in members)
    if forbidden:
        raise ConfigurationError(
            f"message {show(message.id)} carries {forbidden[0]}, which the contract forbids; remove it from "
            f"{ENVELOPE_HEADER}"
        )
    return members


def _message_headers(headers: Mapping[str, str], members: dict[str, Raw], meta: dict[str, Raw]) -> dict[str, str]:
    """The headers of a message that was read: those beside the contract's, and its envelope for `_earlier_members`."""
    message_headers = header_names.other_headers(headers)
    if message_headers.pop(REPLAY_HEADER, ""):
        message_headers[REDRIVEN_HEADER] = BYPASS_PREFIX
    message_headers[ENVELOPE_HEADER] = _to_json({**members, "data": None, "meta": meta}).decode()
    return message_headers


def _take_urn(known: KnownMembers, members: dict[str, Raw]) -> str:
    """Return the URN. It becomes the member ``job``; the older member ``urn`` is removed."""
    if "job" in members and not isinstance(known.job, str):
        log.warning("a BabelQueue message has a /job that is not a string; it is ignored")
    if members.pop("urn", None) is not None and _is_urn(known.job):
        log.warning("a BabelQueue message has a /job and a /urn; the /urn is dropped")
    urn: str = known.job if _is_urn(known.job) else known.urn
    members["job"] = Raw(_to_json(urn))
    return urn


def _drop_forbidden(members: dict[str, Raw], meta: dict[str, Raw]) -> list[str]:
    """Remove the members that the contract forbids. Returns their paths."""
    paths = [f"/{name}" for name in _FORBIDDEN_MEMBERS if members.pop(name, None) is not None]
    return paths + [f"/meta/{name}" for name in _FORBIDDEN_META if meta.pop(name, None) is not None]


def _read_object(members: Mapping[str, Raw], name: str) -> dict[str, Raw]:
    """The members of the member ``name``, where that is an object; else {}."""
    raw = members.get(name)
    return _members.decode(raw) if raw is not None and bytes(raw)[:1] == b"{" else {}


def _read_member(members: Mapping[str, Raw], name: str) -> Any:
    raw = members.get(name)
    return None if raw is None else read_json(raw, Any, name)


def _read_text(members: Mapping[str, Raw], name: str) -> str | None:
    """The member ``name``, where that is a string; else None."""
    raw = members.get(name)
    return read_json(raw, str, name) if raw is not None and bytes(raw)[:1] == b'"' else None


def _count_attempts(headers: Mapping[str, str], written: int) -> int:
    """The attempts so far. The header outranks the body: Kafka's records cannot be rewritten, so the header counts
    there."""
    text = headers.get(header_names.ATTEMPTS, "")
    return int(text) if text.isascii() and text.isdigit() else max(written, 0)


def _header_text(value: str) -> str:
    """``value`` as a header. Brokers refuse line breaks there, which may stand around a URN or a trace."""
    return value if value.isprintable() else value.strip(BLANK_CHARACTERS)


def _created_at(message: Message[Any]) -> int:
    """When ``message`` was created, in milliseconds: its time, else that of its id, else now."""
    if message.time is not None:
        if message.time.tzinfo is None:
            raise ConfigurationError(f"the time of message {show(message.id)} has no time zone; use an aware datetime")
        return max((message.time - _EPOCH) // timedelta(milliseconds=1), 0)
    digits = message.id.replace("-", "")
    if len(message.id) == 36 and digits[12:13] == "7":  # a UUIDv7 begins with its milliseconds
        try:
            return int(digits[:12], 16)
        except ValueError:
            pass
    return time.time_ns() // 1_000_000


def _parse_millis(millis: int | None) -> datetime | None:
    try:
        return None if millis is None else _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return None


# -- the members that the contract defines, and their types

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
    """The members of an envelope that the contract defines. Any of them may be null or missing."""

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
    """Read the known members of ``body``. Raises `Undecodable` where no release could ever handle it.

    That is: ``body`` is not one JSON object, a known member is of the wrong type, or there is neither a job nor a URN.
    A repeated member is checked each time, and its last value counts.
    """
    try:
        text = body.decode()
        known = _known_members.decode(text)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"this is not a BabelQueue message: {show(error, 300)}") from error
    if not (_is_urn(known.job) or _is_urn(known.urn)):
        raise Undecodable("this is not a BabelQueue message: it has neither a job nor a urn")
    if _HUGE_INTEGER.search(text) and not _has_finite_data(text):
        raise Undecodable("this is not a BabelQueue message: its data has a number that is not finite")
    return known


def _has_finite_data(text: str) -> bool:
    """Whether every number in the data is finite for programs that read numbers as doubles."""
    members = json.loads(text, object_pairs_hook=list, parse_int=float)
    return all(_is_finite(value) for name, value in members if name == "data")


def _is_finite(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _is_urn(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip(BLANK_CHARACTERS))
