"""Signed messages (F67: a forged message is decoded): HMAC-SHA-256, verified before anything is decoded.

The signature covers the body, the packet's id and ordering key, and all headers except those that may be added on the
way: ours (``eo-…``: the signature itself, marks of redrives and dead letters), and W3C trace context. It is in the
header ``eo-signature``, in hexadecimal; the id of its key is in ``eo-signature-key``.

It is computed over these texts, as netstrings (``<length>:<bytes>``, in UTF-8): ``effectonce-1``, the id of the key,
the packet's id, its ordering key or nothing, each header's name and value, sorted by name, and the body.

Where an envelope has `contracts.StableHeaders`, only those headers are covered. `BabelQueue` has them: brokers rename
and leave out the headers of its contract, which only repeat what is in the body, and ``bq-attempts`` grows on the way.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from effectonce.contracts import Envelope, Packet, StableHeaders
from effectonce.errors import ForgedMessage, InvalidOption, show
from effectonce.message import Message

SIGNATURE_HEADER: Final = "eo-signature"
KEY_ID_HEADER: Final = "eo-signature-key"
SIGNATURE_VERSION: Final = b"effectonce-1"
MIN_KEY_BYTES: Final = 16

_UNSIGNED_HEADERS = ("traceparent", "tracestate")


class Signed:
    """Signs the packets of ``envelope`` with ``keys[use]``, and reads only those that were signed with one of ``keys``.

    To change keys: add the new one to all consumers, then ``use`` it in the producers, then remove the old one when
    nothing that it signed is left. Keys have at least 16 bytes: make one with ``secrets.token_bytes(32)``.
    """

    def __init__(self, envelope: Envelope, *, keys: Mapping[str, str | bytes], use: str | None = None) -> None:
        self._envelope = envelope
        self._keys = {name: key.encode() if isinstance(key, str) else bytes(key) for name, key in keys.items()}
        if any(len(key) < MIN_KEY_BYTES for key in self._keys.values()):
            raise InvalidOption(
                f"a signing key needs at least {MIN_KEY_BYTES} bytes; make one with secrets.token_bytes(32)"
            )
        if use is None and len(self._keys) == 1:
            (use,) = self._keys
        if use not in self._keys:
            raise InvalidOption(
                f"use={use!r} is not among the keys; they are {', '.join(sorted(self._keys)) or 'none'}"
            )
        self._use: str = use

    def encode(self, message: Message[Any], queue: str = "") -> Packet:
        packet = self._envelope.encode(message, queue)
        signature = self._signature(packet, self._use)
        return replace(packet, headers={**packet.headers, KEY_ID_HEADER: self._use, SIGNATURE_HEADER: signature})

    def decode(self, packet: Packet, data_type: Any = Any) -> Message[Any]:
        headers = dict(packet.headers)
        signature, key_id = headers.pop(SIGNATURE_HEADER, ""), headers.pop(KEY_ID_HEADER, "")
        if not signature:
            raise ForgedMessage(f"it is not signed: its producer has to sign it with one of {', '.join(self._keys)}")
        if key_id not in self._keys:
            raise ForgedMessage(
                f"it is signed with the key {show(key_id)!r}, which is not among keys=; add it, or discard the message"
            )
        if not hmac.compare_digest(self._signature(packet, key_id).encode(), signature.encode()):
            raise ForgedMessage(f"its signature with the key {show(key_id)!r} is wrong")
        return self._envelope.decode(replace(packet, headers=headers), data_type)

    def _signature(self, packet: Packet, key_id: str) -> str:
        headers = packet.headers
        if isinstance(self._envelope, StableHeaders):
            headers = self._envelope.stable_headers(packet)
        texts = [key_id, packet.id, packet.ordering_key or ""]
        for name, value in sorted(headers.items()):
            if not name.startswith("eo-") and name not in _UNSIGNED_HEADERS:
                texts += [name, value]
        parts = [SIGNATURE_VERSION, *(text.encode("utf-8", "surrogatepass") for text in texts), packet.body]
        return hmac.digest(self._keys[key_id], b"".join(b"%d:%b" % (len(part), part) for part in parts), "sha256").hex()

    def __repr__(self) -> str:
        return f"Signed({type(self._envelope).__name__}, keys={sorted(self._keys)}, use={self._use!r})"
