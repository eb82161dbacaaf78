"""What a Redis reports about its own health: its memory, and how it persists what it has confirmed."""

from __future__ import annotations

from typing import Any

from effectonce.record import Figures

from .connection import RedisConnection
from .errors import ReplyError

#: How a node persists its data, the worst first. ``unknown``: the server forbids the question.
PERSISTENCE_LEVELS = ("none", "unknown", "snapshots", "log")


async def read_figures(connection: RedisConnection) -> Figures:
    """Read the figures for `effectonce doctor`: those of the worst node, where there are several."""
    memory: tuple[int, int] | None = None
    persistence, writes = PERSISTENCE_LEVELS[-1], "ok"
    settings: dict[str, str] = {}
    for node in await connection.nodes():
        info = await _read_info(connection, node, "INFO") | await _read_info(connection, node, "CONFIG", "GET", "save")
        used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
        if memory is None or _used_share(used, limit) > _used_share(*memory):
            memory = used, limit
        persistence = min(persistence, _persistence(info), key=PERSISTENCE_LEVELS.index)
        if "err" in (info.get("rdb_last_bgsave_status"), info.get("aof_last_write_status")):
            writes = "err"
        needed = await _read_info(connection, node, "CONFIG", "GET", "min-replicas-to-write")
        if info.get("connected_slaves", "0") != "0" and needed.get("min-replicas-to-write") == "0":
            settings["unconfirmed_replicas"] = info["connected_slaves"]
    return Figures(memory=memory, settings={"persistence": persistence, "persistence_writes": writes, **settings})


def _used_share(used: int, limit: int) -> float:
    """How full a node is; one without a limit does not fill up."""
    return used / limit if limit else 0.0


def _persistence(info: dict[str, str]) -> str:
    if info.get("aof_enabled") == "1":
        return "log"
    if "save" not in info:
        return "unknown"
    return "snapshots" if info["save"] else "none"


async def _read_info(connection: RedisConnection, node: str, *words: str) -> dict[str, str]:
    """Send a command, and return its reply as a dict; {} where the server forbids it, as some services do."""
    try:
        reply = await connection.command(node, *words)
    except ReplyError as error:
        if error.code in ("NOPERM", "ERR"):
            return {}
        raise connection.errors.translate(error) from error
    if isinstance(reply, dict):  # a client's callbacks have parsed it already
        return {_text(name): _text(value) for name, value in reply.items()}
    if isinstance(reply, list):
        texts = [_text(word) for word in reply]
        return dict(zip(texts[::2], texts[1::2], strict=True))
    return dict(line.split(":", 1) for line in _text(reply).splitlines() if ":" in line)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
