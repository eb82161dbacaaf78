"""How an adapter recognises a dead letter that is published again."""

from __future__ import annotations

from collections.abc import Mapping

from effectonce.message import REDRIVEN


def is_redriven(headers: Mapping[str, str]) -> bool:
    """Whether a packet with these headers is a dead letter that is published again.

    A broker that deduplicates by id has seen this id before: it would confirm the packet and drop it. Such a packet
    must be published under another id.
    """
    return any(name == REDRIVEN or name.startswith("eo-dead") for name in headers)
