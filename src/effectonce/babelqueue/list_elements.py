"""Writing and reading the elements of BabelQueue's lists on Redis.

An element is an envelope as it is, or a frame: a JSON object with a body and the headers beside it.
"""

from __future__ import annotations

import hashlib
import time
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from effectonce.contracts import DeadLetter, Packet
from effectonce.message import CAUSE_HEADER

from .dead_letters import dead_letter_record, original_body
from .envelope import identity_of
from .headers import JOB, VERSION, other_headers

to_json = msgspec.json.Encoder().encode

FRAME_MEMBER: Final = "__bq_frame"
#: Headers of ours in a frame, which packets do not show. ``BODY_ENCODING`` is "base64" where the body is not text.
ID_HEADER: Final = "eo-id"
ORDERING_KEY: Final = "eo-ordering-key"
BODY_ENCODING: Final = "eo-body"
#: BabelQueue's words for a worker's reasons, in the cause of a dead letter.
BABELQUEUE_REASONS: Final = {"unknown-type": "unknown_urn", "undecodable": "poison", "forged-message": "poison"}


class _Frame(msgspec.Struct):
    marker: Any = msgspec.field(name=FRAME_MEMBER)
    body: str
    headers: dict[str, str] = msgspec.field(default_factory=dict)


_frame_decoder = msgspec.json.Decoder(_Frame)
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def make_element(packet: Packet) -> bytes:
    """Make the element that carries ``packet``: an envelope of BabelQueue as it is, any other body in a frame."""
    is_envelope = VERSION in packet.headers and JOB in packet.headers
    headers = other_headers(packet.headers) if is_envelope else dict(packet.headers)
    id, ordering_key = identity_of(packet.body)
    if packet.id != id:
        headers[ID_HEADER] = packet.id
    if packet.ordering_key not in (None, ordering_key):
        headers[ORDERING_KEY] = packet.ordering_key or ""
    return _frame_body(packet.body, headers)


def _frame_body(body: bytes, headers: dict[str, str]) -> bytes:
    """Put ``body`` into a frame, if there are headers to carry, or if it could be taken for a frame itself."""
    if not headers and FRAME_MEMBER.encode() not in body:
        return body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text, headers = b2a_base64(body, newline=False).decode(), {**headers, BODY_ENCODING: "base64"}
    return to_json({FRAME_MEMBER: 1, "headers": headers, "body": text})


def _unframe(element: bytes) -> tuple[bytes, dict[str, str]]:
    """Read the body and the headers of an element. One without a frame is its own body, and has no headers."""
    if element[:1] == b"{" and FRAME_MEMBER.encode() in element:
        try:
            frame = _frame_decoder.decode(element)
            in_base64 = frame.headers.pop(BODY_ENCODING, "")
            return a2b_base64(frame.body) if in_base64 else frame.body.encode(), frame.headers
        except (msgspec.DecodeError, ValueError):
            pass
    return element, {}


def read_packet(element: bytes) -> Packet:
    body, headers = _unframe(element)
    id, ordering_key = identity_of(body)
    id, ordering_key = headers.pop(ID_HEADER, id), headers.pop(ORDERING_KEY, ordering_key)
    return Packet(body=body, headers=headers, id=id, ordering_key=ordering_key)


def count_attempt(element: bytes) -> bytes:
    """Make the element of a message that is given back: with one more attempt in its envelope, and otherwise
    unchanged."""
    body, headers = _unframe(element)
    try:
        members: dict[str, Any] = dict(_members_decoder.decode(body))
        members["attempts"] = msgspec.json.decode(members["attempts"], type=int) + 1
    except (msgspec.DecodeError, KeyError, RecursionError):
        return element  # it is not an envelope
    return _frame_body(to_json(members), headers)


def make_dead_letter_element(packet: Packet, headers: Mapping[str, str], queue: str) -> bytes:
    """Make the element of a dead letter in BabelQueue's form. Headers, id and ordering key are in the member
    ``effectonce`` of its ``dead_letter`` block."""
    try:
        cause = msgspec.json.decode(headers.get(CAUSE_HEADER, "{}"), type=dict[str, Any])
    except msgspec.DecodeError:
        cause = {}
    own = {"headers": {**packet.headers, **headers}, "id": packet.id, "key": packet.ordering_key}
    block = {
        "reason": BABELQUEUE_REASONS.get(str(cause.get("why")), "failed"),
        "error": cause.get("text"),
        "exception": cause.get("error"),
        "failed_at": time.time_ns() // 1_000_000,
        "original_queue": queue,
        "attempts": cause.get("attempts", 0),
        "lang": "python",
        "effectonce": own,
    }
    return dead_letter_record(packet.body, block)


def read_dead_letter(element: bytes, queue: str) -> DeadLetter:
    """Read the dead letter in an element, which another SDK may have written."""
    record, frame_headers = _unframe(element)
    body, block = original_body(record)
    own = block.pop("effectonce", None)
    if isinstance(own, dict):
        packet = Packet(body=body, headers=own["headers"], id=own["id"], ordering_key=own["key"])
    else:
        id, ordering_key = identity_of(body)
        cause = {"why": block.get("reason"), "text": block.get("error"), "error": block.get("exception")}
        cause = {name: value for name, value in cause.items() if value} | {"attempts": block.get("attempts", 0)}
        headers = {**frame_headers, CAUSE_HEADER: to_json(cause).decode()} if block else frame_headers
        packet = Packet(body=body, headers=headers, id=id, ordering_key=ordering_key)
    return DeadLetter(id=element_id(element), packet=packet, queue=queue)


def element_id(element: bytes) -> str:
    """The id of a dead letter: the SHA-1 of its element."""
    return hashlib.sha1(element, usedforsecurity=False).hexdigest()
