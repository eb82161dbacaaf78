"""What adapters share when they publish packets and read them back."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable
from effectonce.message import REDRIVEN


def is_redriven(headers: Mapping[str, str]) -> bool:
    """Whether a packet with these headers is a dead letter that is published again.

    A broker that deduplicates by id has seen this id before: it would confirm the packet and drop it. Such a packet
    must be published under another id.
    """
    return any(name == REDRIVEN or name.startswith("eo-dead") for name in headers)


def deduplication_id(packet: Packet, allowed: re.Pattern[str]) -> str:
    """The id that a broker deduplicates ``packet`` by. It is random for a packet without an id, and for a redriven one,
    which is published again on purpose."""
    return random_id() if not packet.id or is_redriven(packet.headers) else fit_id(packet.id, allowed)


def fit_id(text: str, allowed: re.Pattern[str]) -> str:
    """``text`` as an id that a broker takes: itself, or a hash of it."""
    return text if allowed.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def random_id() -> str:
    return os.urandom(16).hex()


def read_own_field(text: str | None) -> dict[str, Any]:
    """The parts of a packet that an adapter wrote as JSON into a field of its own, where the broker's message has no
    place for them: ``id``, ``key`` (the ordering key) and ``headers``. Empty where another program wrote the field.
    """
    try:
        own = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(own, dict) or not all(isinstance(own.get(name, ""), str) for name in ("id", "key")):
        return {}
    headers = own.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        return {}
    return own


def raise_if_all_unavailable(outcomes: Sequence[Exception | None]) -> None:
    """Raise the first outcome where none of a call's packets is known to have arrived or to be refused.

    See `contracts.Publisher.publish`: an error that concerns the whole call is raised, not returned for each packet.
    """
    if outcomes and all(isinstance(outcome, BrokerUnavailable) for outcome in outcomes):
        raise next(filter(None, outcomes))
