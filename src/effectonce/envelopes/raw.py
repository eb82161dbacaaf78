"""No envelope: the body is the data itself, as JSON or bytes. Producers without effectonce write it so."""

from __future__ import annotations

from typing import Any, Final

from effectonce.contracts import Packet
from effectonce.core.interrupts import raise_interrupt
from effectonce.errors import InvalidKey, InvalidOption, MissingKey, Undecodable, show
from effectonce.keys import KeySpec, encode_key, extractor, key_text
from effectonce.message import Message

from .bodies import DEFAULT_MAX_BODY_BYTES, JSON_CONTENT, body_too_large, is_json, make_packet, read_json, write_data

_HEADER_PATH: Final = "headers."


class Raw:
    """Reads and writes bodies without an envelope.

    ``key`` says what duplicates share: a path into the body (``"data.payment.id"``), a header
    (``"headers.x-request-id"``), a tuple of these, or a function of ``data`` and ``headers``. Without it, the key is
    the id that the producer gave the broker.

    The message's type is in the header ``type_header``; messages without it have the type ``type``. ``content`` is
    ``"json"`` or ``"bytes"``; None: JSON unless the content type says otherwise.
    """

    def __init__(
        self,
        *,
        key: KeySpec | None = None,
        type: str = "",
        type_header: str = "type",
        content: str | None = None,
        max_body: int = DEFAULT_MAX_BODY_BYTES,
    ) -> None:
        if content not in (None, "json", "bytes"):
            raise InvalidOption(f"Raw(content={content!r}): give 'json', 'bytes', or None to go by the content type")
        self._key = None if key is None else extractor(key, _key_parameters)
        self._key_text = "" if key is None else key_text(key)
        self._key_header = (
            key.removeprefix(_HEADER_PATH) if isinstance(key, str) and key.startswith(_HEADER_PATH) else None
        )
        self._type = type
        self._type_header = type_header
        self._content = content
        self.max_body = max_body

    def encode(self, message: Message[Any], queue: str = "") -> Packet:
        body, content_type = write_data(message)
        headers = {"content-type": content_type, **message.headers}
        if message.type:
            headers[self._type_header] = message.type
        if self._key_header is not None:
            headers.setdefault(self._key_header, message.key)
        return make_packet(message, body, headers, self.max_body)

    def decode(self, packet: Packet, data_type: Any = Any) -> Message[Any]:
        if len(packet.body) > self.max_body:
            raise body_too_large(packet, self.max_body)
        headers = dict(packet.headers)
        data = self._read_data(packet, data_type)
        key = packet.id if self._key is None else self._extract_key(data, headers)
        return Message(
            data=data,
            type=headers.pop(self._type_header, self._type),
            id=packet.id or key,
            key=key,
            ordering_key=packet.ordering_key,
            headers=headers,
        )

    def _read_data(self, packet: Packet, data_type: Any) -> Any:
        """Read the body. A handler of ``bytes`` gets it as it is; a handler of any other type gets JSON, whatever
        ``content`` says. For a handler without a type ``content`` decides, else the content type."""
        if data_type is bytes:
            return packet.body
        if data_type is Any and not self._holds_json(packet):
            return packet.body
        return read_json(packet.body, data_type, "the body")

    def _holds_json(self, packet: Packet) -> bool:
        if self._content is not None:
            return self._content == "json"
        return is_json(packet.headers.get("content-type", JSON_CONTENT))

    def _extract_key(self, data: Any, headers: dict[str, str]) -> str:
        assert self._key is not None
        try:
            return encode_key(self._key((data, headers), {}))
        except (MissingKey, InvalidKey) as error:
            raise Undecodable(f"its key {show(self._key_text)} cannot be used: {error}") from error
        except Exception as error:  # the user's function fails for a body that it did not expect
            raise_interrupt(error)
            raise Undecodable(f"its key {show(self._key_text)} cannot be used: {type(error).__name__}") from error


def _key_parameters(data: Any, headers: Any) -> None:
    """The parameters that a ``key`` may name."""
