"""Writing a packet into a NATS message, and reading it back.

Headers on NATS are lines of text: they have no line breaks, no spaces around a value, and the server acts upon some of
their names. Headers that do not fit travel as JSON in one header, ``Eo-Packet``, with the ordering key, and with the id
where ``Nats-Msg-Id`` does not hold it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from effectonce.backends.common.packets import fit_id, read_own_field
from effectonce.contracts import Packet

ID_HEADER: Final = "Nats-Msg-Id"
NO_MESSAGE_ID: Final = ""  # the server never takes a message without an id for a duplicate
OWN_HEADER: Final = "Eo-Packet"
SCHEDULE_HEADER: Final = "Nats-Schedule"
SCHEDULE_TARGET_HEADER: Final = "Nats-Schedule-Target"
_PLAIN_NAME: Final = re.compile(r"(?!nats-|eo-packet|status$|description$)[a-z0-9_.+~^-]+", re.IGNORECASE | re.ASCII)
_PLAIN_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
_PLAIN_ID: Final = re.compile(r"([!-~]([ -~]{0,198}[!-~])?)?")  # up to 200 characters; "": there is no id


def make_headers(packet: Packet, message_id: str | None = None) -> dict[str, str]:
    """Make the headers of the message that carries ``packet``.

    The server deduplicates by ``message_id``. None: that is the packet's id. `NO_MESSAGE_ID`: this message has none.
    The server drops that header of a delayed message when it delivers it, so the id is in ours, too.
    """
    is_delayed = packet.delay_s > 0
    packet = packet.for_broker("nats")
    headers: dict[str, str] = {}
    unfit: dict[str, str] = {}
    for name, value in packet.headers.items():
        if _PLAIN_NAME.fullmatch(name) and _PLAIN_VALUE.fullmatch(value):
            headers[name] = value
        else:
            unfit[name] = value
    if message_id is None:
        message_id = fit_id(packet.id, _PLAIN_ID)
    own: dict[str, Any] = {}
    if packet.id and (is_delayed or message_id != packet.id):
        own["id"] = packet.id
    if packet.ordering_key is not None:
        own["key"] = packet.ordering_key
    if unfit:
        own["headers"] = unfit
    if own:
        headers[OWN_HEADER] = json.dumps(own)
    if message_id:
        headers[ID_HEADER] = message_id
    return headers


def read_packet(message_headers: Mapping[str, str] | None, body: bytes) -> Packet:
    """Read the packet in a message, which another client may have sent."""
    raw = message_headers or {}
    headers = {
        name: value for name, value in raw.items() if name != OWN_HEADER and not name.lower().startswith("nats-")
    }
    own = read_own_field(raw.get(OWN_HEADER))
    headers.update(own.get("headers", {}))
    return Packet(body=body, headers=headers, id=own.get("id", raw.get(ID_HEADER, "")), ordering_key=own.get("key"))
