"""What brokers' adapters share when they write packets into messages and read them back."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable
from effectonce.message import CAUSE_HEADER, REDRIVEN_HEADER


def deduplication_id(packet: Packet, allowed: re.Pattern[str]) -> str:
    """The id by which a broker deduplicates ``packet``. It is random where the packet has none, and for a redriven
    packet, a dead letter that is published again: the broker has seen its id, and would confirm it and drop it."""
    is_redriven = any(name == REDRIVEN_HEADER or name.startswith(CAUSE_HEADER) for name in packet.headers)
    return random_id() if not packet.id or is_redriven else fit_id(packet.id, allowed)


def fit_id(text: str, allowed: re.Pattern[str]) -> str:
    """``text``, or a hash of it where the broker does not allow it as an id."""
    return text if allowed.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def random_id() -> str:
    return os.urandom(16).hex()


def read_own_field(text: str | None) -> dict[str, Any]:
    """Read the parts of a packet for which the broker's message has no place: ``id``, ``key`` (the ordering key) and
    ``headers``. The adapter wrote them as JSON into a field of its own. {} where another program wrote that field.
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
    """Raise the first outcome where the outcome of every packet is unknown.

    `contracts.Publisher.publish` asks for that: an error of the whole call is raised, not returned for each packet.
    """
    if outcomes and all(isinstance(outcome, BrokerUnavailable) for outcome in outcomes):
        raise next(filter(None, outcomes))


def split_into_chunks(indexes: Iterable[int], sizes: Sequence[int], max_count: int, max_bytes: int) -> list[list[int]]:
    """Split packets, by index, into the chunks that one call each can send: of ``max_count`` at most, which together
    have ``max_bytes`` at most. No packet alone has more."""
    chunks: list[list[int]] = []
    room = 0  # in the last chunk
    for index in indexes:
        if not chunks or sizes[index] > room or len(chunks[-1]) == max_count:
            chunks.append([])
            room = max_bytes
        chunks[-1].append(index)
        room -= sizes[index]
    return chunks


def hold_back_behind_failed(
    chunk: Sequence[int], ordering_keys: Sequence[str | None], outcomes: list[Exception | None]
) -> None:
    """Give an outcome to the packets of ``chunk``, by index, that must not be sent: one before them with their ordering
    key has failed."""
    failed_keys = set()
    for index in range(chunk[-1] + 1):
        if outcomes[index] is not None:
            failed_keys.add(ordering_keys[index])
        elif index >= chunk[0] and ordering_keys[index] is not None and ordering_keys[index] in failed_keys:
            outcomes[index] = BrokerUnavailable("it was not sent, since one before it failed; send it again")
