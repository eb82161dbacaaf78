"""A packet as a message of NATS.

Headers there are lines of text: no line breaks, no spaces around a value, and some names that the server acts upon.
What is not plain travels in one header as JSON, ``Eo-Packet``, with the ordering key, and with the id where
``Nats-Msg-Id`` does not hold it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from effectonce.contracts import Packet

ID: Final = "Nats-Msg-Id"
REST: Final = "Eo-Packet"
_NAME: Final = re.compile(r"(?!nats-|eo-packet|status$|description$)[a-z0-9_.+~^-]+", re.IGNORECASE | re.ASCII)
_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")


def headers_of(packet: Packet, own_id: str | None = None) -> dict[str, str]:
    """The headers of ``packet``. ``own_id`` is what the server knows it by instead of its id; "": it is not to."""
    headers: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in packet.headers.items():
        (headers if _NAME.fullmatch(name) and _VALUE.fullmatch(value) else others)[name] = value
    known_as = _plain(packet.id) if own_id is None else own_id
    rest: dict[str, Any] = {}
    if packet.id and known_as != packet.id:
        rest["id"] = packet.id
    if packet.ordering_key is not None:
        rest["key"] = packet.ordering_key
    if others:
        rest["headers"] = others
    if rest:
        headers[REST] = json.dumps(rest)
    if known_as:
        headers[ID] = known_as
    return headers


def _plain(id: str) -> str:
    return id if not id or (len(id) <= 200 and _VALUE.fullmatch(id)) else hashlib.sha256(id.encode()).hexdigest()


def packet_of(headers: Mapping[str, str] | None, body: bytes) -> Packet:
    given = headers or {}
    found = {name: value for name, value in given.items() if name != REST and not name.lower().startswith("nats-")}
    rest = _rest(given[REST]) if REST in given else {}
    found.update(rest.get("headers", {}))
    return Packet(body=body, headers=found, id=rest.get("id", given.get(ID, "")), ordering_key=rest.get("key"))


def _rest(text: str) -> dict[str, Any]:
    """What we have written there; nothing, where somebody else has."""
    try:
        rest = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(rest, dict) or not all(isinstance(rest.get(name, ""), str) for name in ("id", "key")):
        return {}
    headers = rest.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        return {}
    return rest
