"""What a Redis says about its own health: memory, and how it keeps what it has confirmed."""

from __future__ import annotations

from typing import Any

from effectonce.record import Figures

from .connection import ReplyError, Wire, translate

#: How a node keeps its data, the worst first. ``unknown``: it may not be asked.
PERSISTENCE = ("none", "unknown", "snapshots", "log")


async def figures(wire: Wire) -> Figures:
    """Of several nodes, what the worst of them says."""
    memory: tuple[int, int] | None = None
    kept, writes = PERSISTENCE[-1], "ok"
    for node in await wire.nodes():
        told = await _asked(wire, node, "INFO", "memory") | await _asked(wire, node, "INFO", "persistence")
        told |= await _asked(wire, node, "CONFIG", "GET", "save")
        used, limit = int(told.get("used_memory", 0)), int(told.get("maxmemory", 0))
        if memory is None or (limit and used / limit > memory[0] / max(memory[1], 1)):
            memory = used, limit
        kept = min(kept, _persistence(told), key=PERSISTENCE.index)
        if "err" in (told.get("rdb_last_bgsave_status"), told.get("aof_last_write_status")):
            writes = "err"
    return Figures(memory=memory, settings={"persistence": kept, "persistence_writes": writes})


def _persistence(told: dict[str, str]) -> str:
    if told.get("aof_enabled") == "1":
        return "log"
    if "save" not in told:
        return "unknown"
    return "snapshots" if told["save"] else "none"


async def _asked(wire: Wire, node: str, *words: str) -> dict[str, str]:
    """The reply by name; {} where it may not be asked, as some services have it."""
    try:
        reply = await wire.command(node, *words)
    except ReplyError as error:
        if error.code in ("NOPERM", "ERR"):
            return {}
        raise translate(error, wire.shown) from error
    if isinstance(reply, dict):  # a client's callbacks have read it already
        return {_text(name): _text(value) for name, value in reply.items()}
    if isinstance(reply, list):
        texts = [_text(each) for each in reply]
        return dict(zip(texts[::2], texts[1::2], strict=True))
    return dict(line.split(":", 1) for line in _text(reply).splitlines() if ":" in line)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
