"""CloudEvents 1.0, the default envelope: JSON in the body (structured), or attributes in the headers (binary).

Fields of a `Message` that the specification lacks are extension attributes: ``idempotencykey`` (where the key is not
the id), ``partitionkey`` (the ordering key), ``correlationid`` (the trace id), ``traceparent`` and ``tracestate``. All
other attributes are headers of the message, under their names in binary mode (``ce-subject``). Other headers travel
beside the body in both modes.

The bindings differ in how they write a value into a header. Those to HTTP and NATS (``ce-``) percent-encode it. The one
to RabbitMQ has the same prefix and does not, so we encode only the values that a reader would take for encoded
otherwise: all others mean the same to every reader. AMQP may write ``time`` as a timestamp, in milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

import msgspec

from effectonce.contracts import Packet
from effectonce.errors import ConfigurationError, InvalidOption, Undecodable, show
from effectonce.message import Message

from .bodies import (
    BYTES_CONTENT,
    BYTES_TYPES,
    DEFAULT_MAX_BODY_BYTES,
    JSON_CONTENT,
    body_too_large,
    is_json,
    make_packet,
    read_json,
    write_data,
    write_json,
)

STRUCTURED_CONTENT: Final = "application/cloudevents+json"
#: The type of a message without one: the specification requires a type.
UNTYPED_TYPE: Final = "effectonce.untyped"

_TRACE_HEADERS = ("traceparent", "tracestate")
#: The prefixes of attributes in headers: those of the bindings to HTTP and NATS, to Kafka, and to AMQP (two).
HEADER_PREFIXES: Final = ("ce-", "ce_", "cloudEvents:", "cloudEvents_")
_PREFIX = re.compile(r"^(ce[-_]|cloudEvents[:_])(?=[a-z0-9])", re.IGNORECASE)
#: What percent-encoding leaves: visible ASCII without quotes, and percent signs only before two hexadecimal digits.
_PERCENT_ENCODED = re.compile(r"(?:[!#$&-~]|%[0-9A-Fa-f]{2})*")
_ENCODED_BYTE = re.compile(rb"%([0-9A-Fa-f]{2})")
_UNSAFE_BYTE = re.compile(rb"[^!#$&-~]")
_TIMESTAMP_MS = re.compile(r"-?[0-9]{1,18}")
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MESSAGE_FIELDS = {
    "id": "id",
    "type": "type",
    "idempotencykey": "key",
    "partitionkey": "ordering_key",
    "correlationid": "trace_id",
    "source": "source",
}
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class CloudEvents:
    """CloudEvents 1.0. Reads both modes, and writes ``mode``.

    In structured mode the body is the whole event; data that is bytes is in ``data_base64``. In binary mode the body is
    the data, as JSON or bytes, and attributes are headers whose names begin with ``prefix``: ``ce-``, or for readers
    that follow their broker's binding ``ce_`` (Kafka) or ``cloudEvents:`` (AMQP). All of these prefixes are read.
    ``source`` is the source of messages that have none.
    """

    def __init__(
        self,
        mode: Literal["structured", "binary"] = "structured",
        *,
        source: str = "effectonce",
        prefix: str = "ce-",
        max_body: int = DEFAULT_MAX_BODY_BYTES,
    ) -> None:
        if mode not in ("structured", "binary"):
            raise InvalidOption(f"mode={mode!r} is not a mode of CloudEvents; use 'structured' or 'binary'")
        if not source:
            raise InvalidOption("CloudEvents needs a source: a URI, or a name like 'shop'")
        if prefix not in HEADER_PREFIXES:
            raise InvalidOption(f"prefix={prefix!r} is not one of {', '.join(HEADER_PREFIXES)}")
        self.mode = mode
        self.prefix = prefix
        self.source = source
        self.max_body = max_body

    def encode(self, message: Message[Any], queue: str = "") -> Packet:
        attributes, headers = self._attributes(message)
        if self.mode == "structured":
            is_bytes = isinstance(message.data, BYTES_TYPES)
            if is_bytes:
                attributes.setdefault("datacontenttype", BYTES_CONTENT)
            attributes["data_base64" if is_bytes else "data"] = message.data
            headers["content-type"] = STRUCTURED_CONTENT
            return make_packet(message, write_json(attributes, message), headers, self.max_body)
        body, content_type = write_data(message)
        headers["content-type"] = content_type = attributes.pop("datacontenttype", content_type)
        if isinstance(message.data, str) and not is_json(content_type):
            body = message.data.encode()
        for name, value in attributes.items():
            if name in _TRACE_HEADERS:
                headers[name] = value
            else:
                headers[f"{self.prefix}{name}"] = _percent_encode(value) if self.prefix == "ce-" else value
        return make_packet(message, body, headers, self.max_body)

    def _attributes(self, message: Message[Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Split ``message`` into its attributes, and the headers that are not attributes."""
        attributes: dict[str, Any] = {
            "specversion": "1.0",
            "id": message.id,
            "source": message.source or self.source,
            "type": message.type or UNTYPED_TYPE,
        }
        if message.time is not None:
            if message.time.tzinfo is None:
                raise ConfigurationError(
                    f"the time of message {show(message.id)} has no time zone; use an aware datetime"
                )
            attributes["time"] = msgspec.to_builtins(message.time)
        if message.key != message.id:
            attributes["idempotencykey"] = message.key
        if message.ordering_key is not None:
            attributes["partitionkey"] = message.ordering_key
        if message.trace_id is not None:
            attributes["correlationid"] = message.trace_id
        headers: dict[str, str] = {}
        for name, value in message.headers.items():
            if name.startswith("ce-"):
                attributes.setdefault(_attribute_name(name[3:], message), value)
            elif name in _TRACE_HEADERS:
                attributes[name] = value
            else:
                headers[name] = value
        return attributes, headers

    def decode(self, packet: Packet, data_type: Any = Any) -> Message[Any]:
        if len(packet.body) > self.max_body:
            raise body_too_large(packet, self.max_body)
        content_type = packet.headers.get("content-type", "")
        if not content_type.startswith(STRUCTURED_CONTENT):
            headers = _read_headers(packet.headers)
            if "ce-specversion" in headers:
                content_type = content_type or str(packet.fields.get("content_type", ""))  # Service Bus has it there
                return _read_binary(packet.body, headers, content_type, data_type)
            if content_type:
                raise Undecodable(
                    f"this is not a CloudEvent: its content-type is {show(content_type)!r}, and it has no header "
                    "ce-specversion; read the queue with the envelope of its producers"
                )
        return _read_own(packet, data_type) or _read_structured(packet, data_type)


_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _CloudEvent(msgspec.Struct, forbid_unknown_fields=True):
    """A structured event as we write it, with JSON data, which msgspec parses in one step. `_read_structured` reads all
    other events."""

    specversion: Literal["1.0"]
    id: _Text
    source: _Text
    type: _Text
    data: msgspec.Raw
    time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    idempotencykey: str = ""
    partitionkey: str | None = None
    correlationid: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None


class _PlainEvent(_CloudEvent):
    """The same, where the handler names no type for the data."""

    data: Any


_event = msgspec.json.Decoder(_CloudEvent)
_plain_event = msgspec.json.Decoder(_PlainEvent)


def _read_own(packet: Packet, data_type: Any) -> Message[Any] | None:
    """Read an event that is written as we write it. None: `_read_structured` has to read it."""
    plain = data_type is Any
    try:
        event = (_plain_event if plain else _event).decode(packet.body)
    except (msgspec.DecodeError, RecursionError):
        return None
    headers = dict(packet.headers)
    headers.pop("content-type", None)
    if event.traceparent is not None:
        headers["traceparent"] = event.traceparent
    if event.tracestate is not None:
        headers["tracestate"] = event.tracestate
    return Message(
        data=event.data if plain else read_json(event.data, data_type, "the data"),
        type="" if event.type == UNTYPED_TYPE else event.type,
        id=event.id,
        key=event.idempotencykey or event.id,
        ordering_key=event.partitionkey,
        headers=headers,
        trace_id=event.correlationid,
        source=event.source,
        time=event.time,
    )


def _read_structured(packet: Packet, data_type: Any) -> Message[Any]:
    try:
        members = _members.decode(packet.body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Undecodable(f"the body is not a CloudEvent in JSON: {show(error, 300)}") from error
    raw, encoded = members.pop("data", None), members.pop("data_base64", None)
    if raw is not None and encoded is not None:
        raise Undecodable("a CloudEvent has data or data_base64, not both")
    attributes = {name: _attribute_text(name, value) for name, value in members.items() if bytes(value) != b"null"}
    content_type = attributes.pop("datacontenttype", "")
    data = None
    if encoded is not None:
        data = _decode_data(read_json(encoded, bytes, "data_base64"), content_type or BYTES_CONTENT, data_type)
    elif raw is not None or data_type is not Any:
        data = read_json(b"null" if raw is None else raw, data_type, "the data")
    headers = {name: value for name, value in packet.headers.items() if name != "content-type"}
    return _make_message(attributes, content_type, headers, data)


def _read_binary(body: bytes, headers: Mapping[str, str], content_type: str, data_type: Any) -> Message[Any]:
    attributes: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in headers.items():
        if name.startswith("ce-"):
            attributes[name[3:]] = value
        elif name != "content-type":
            others[name] = value
    return _make_message(attributes, content_type, others, _decode_data(body, content_type or JSON_CONTENT, data_type))


def _read_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Read the headers of a packet of any binding. Beside attributes as ``ce-``, a header with another prefix is not an
    attribute: it would replace one."""
    if "ce-specversion" in headers:
        return {name: _percent_decode(value) if name.startswith("ce-") else value for name, value in headers.items()}
    return dict(_read_header(name, value) for name, value in headers.items())


def _read_header(name: str, value: str) -> tuple[str, str]:
    """Read a header of any binding: an attribute gets the prefix ``ce-``, and its value as text."""
    found = _PREFIX.match(name)
    if found is None:
        return name, value
    prefix, attribute = found[1].lower(), name[found.end() :]
    if prefix == "ce-":
        value = _percent_decode(value)
    elif attribute == "time" and prefix != "ce_" and _TIMESTAMP_MS.fullmatch(value):
        value = _timestamp_text(int(value))
    return f"ce-{attribute}", value


def _percent_encode(value: str) -> str:
    """Percent-encode ``value`` if a reader would take it for encoded."""
    if "%" not in value or not _ENCODED_BYTE.search(encoded := value.encode()):
        return value
    return _UNSAFE_BYTE.sub(lambda byte: b"%%%02X" % ord(byte[0]), encoded).decode()


def _percent_decode(value: str) -> str:
    """Decode ``value`` if it is percent-encoded. A value that no encoder writes is returned as it is: keys that differ
    have to stay different."""
    if "%" not in value or not _PERCENT_ENCODED.fullmatch(value):
        return value
    try:
        return _ENCODED_BYTE.sub(lambda byte: bytes([int(byte[1], 16)]), value.encode()).decode()
    except UnicodeDecodeError:
        return value


def _timestamp_text(timestamp_ms: int) -> str:
    try:
        return str(msgspec.to_builtins(_UNIX_EPOCH + timedelta(milliseconds=timestamp_ms)))
    except OverflowError:  # outside the years 1 to 9999: `_parse_time` refuses the number
        return str(timestamp_ms)


def _decode_data(body: bytes, content_type: str, data_type: Any) -> Any:
    """Read data that is not inside a JSON event: as JSON where its content type says so, as bytes otherwise."""
    if data_type is bytes or (data_type is Any and not is_json(content_type)):
        return body
    return read_json(body or b"null", data_type, "the data")


def _make_message(attributes: dict[str, str], content_type: str, headers: dict[str, str], data: Any) -> Message[Any]:
    """Make the message with these ``attributes``. Those for which it has no field become headers."""
    version = attributes.pop("specversion", "")
    if version != "1.0":
        raise Undecodable(f"its specversion is {show(version)!r}; this release reads CloudEvents 1.0")
    for name in ("id", "type", "source"):
        if not attributes.get(name):
            raise Undecodable(f"this CloudEvent has no {name}")
    fields: dict[str, Any] = {
        field: attributes.pop(name) for name, field in _MESSAGE_FIELDS.items() if name in attributes
    }
    if fields["type"] == UNTYPED_TYPE:
        fields["type"] = ""
    if "time" in attributes:
        fields["time"] = _parse_time(attributes.pop("time"))
    if content_type not in ("", JSON_CONTENT, BYTES_CONTENT):
        headers["ce-datacontenttype"] = content_type
    for name, value in attributes.items():
        headers[name if name in _TRACE_HEADERS else f"ce-{name}"] = value
    return Message(data=data, headers=headers, **fields)


def _attribute_text(name: str, raw: msgspec.Raw) -> str:
    value = read_json(raw, Any, f"the attribute {show(name)}")
    if type(value) is str:
        return value
    if type(value) in (int, bool) and name not in ("id", "source", "type", "specversion", "time"):
        return str(value).lower()
    raise Undecodable(f"the attribute {show(name)} is not a string")


def _parse_time(value: str) -> datetime:
    try:
        time = msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        time = None
    if time is None or time.tzinfo is None:
        raise Undecodable(f"its time is not RFC 3339: {show(value)!r}")
    return time


def _attribute_name(name: str, message: Message[Any]) -> str:
    if not (name.isascii() and name.isalnum() and name == name.lower()) or name == "data":
        raise ConfigurationError(
            f"message {show(message.id)} has the header ce-{show(name)}, which is not the name of an attribute of "
            "CloudEvents; use lower-case letters and digits only"
        )
    return name
