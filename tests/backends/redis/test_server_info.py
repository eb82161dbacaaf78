"""What `effectonce doctor` reports about the servers: the figures of the worst node."""

from __future__ import annotations

from typing import Any

import pytest

from effectonce.backends.redis.errors import RedisErrors, ReplyError
from effectonce.backends.redis.server_info import read_figures
from effectonce.core.run_sync import run_sync
from effectonce.errors import ConfigurationError, StoreUnavailable
from effectonce.record import Figures


class Nodes:
    """Nodes that answer INFO, and CONFIG GET save."""

    errors = RedisErrors("r")

    def __init__(self, *nodes: tuple[Any, Any]) -> None:
        self._nodes = nodes

    async def nodes(self) -> list[str]:
        return [str(number) for number in range(len(self._nodes))]

    async def command(self, node: str, *words: str) -> Any:
        info, save = self._nodes[int(node)]
        reply = info if words == ("INFO",) else save
        if isinstance(reply, Exception):
            raise reply
        return reply


def figures(*nodes: tuple[Any, Any]) -> Figures:
    connection: Any = Nodes(*nodes)
    return run_sync(read_figures(connection))


def node(used: int = 1, limit: int = 10, *, log: bool = True, save: str = "60 1", **states: str) -> tuple[Any, Any]:
    lines = ["# Memory", f"used_memory:{used}", f"maxmemory:{limit}", f"aof_enabled:{log:d}"]
    lines += [f"{name}:{value}" for name, value in states.items()]
    return "\r\n".join(lines).encode(), [b"save", save.encode()]


def settings(*nodes: tuple[Any, Any]) -> tuple[str, str]:
    found = figures(*nodes).settings
    return found["persistence"], found["persistence_writes"]


def test_the_memory_is_that_of_the_node_that_is_fullest() -> None:
    assert figures(node(1, 10)).memory == (1, 10)
    assert figures(node(1, 10), node(4, 20), node(1, 50)).memory == (4, 20)
    assert figures(node(9, 10), node(50, 1000)).memory == (9, 10)
    assert figures(node(9, 10), node(900, 0)).memory == (9, 10)  # without a limit it cannot fill up
    assert figures(node(900, 0), node(9, 10)).memory == (9, 10)


def test_the_persistence_is_that_of_the_node_that_may_lose_most() -> None:
    assert settings(node()) == ("log", "ok")
    assert settings(node(log=False)) == ("snapshots", "ok")
    assert settings(node(log=False, save="")) == ("none", "ok")
    assert settings(node(), node(log=False), node(log=False, save="")) == ("none", "ok")
    assert settings((node(log=False)[0], ReplyError("NOPERM config"))) == ("unknown", "ok")
    assert settings((ReplyError("ERR unknown"), ReplyError("ERR unknown"))) == ("unknown", "ok")


@pytest.mark.parametrize("state", ["rdb_last_bgsave_status", "aof_last_write_status"])
def test_a_write_that_failed_on_any_node_is_reported(state: str) -> None:
    assert settings(node(**{state: "err"}), node(**{state: "ok"})) == ("log", "err")


def test_a_reply_that_a_client_has_parsed_already_is_read_too() -> None:
    assert figures(({"used_memory": 3, b"maxmemory": b"9"}, {"save": ""})).memory == (3, 9)


@pytest.mark.parametrize(("text", "kind"), [("NOAUTH x", ConfigurationError), ("LOADING x", StoreUnavailable)])
def test_a_server_that_does_not_serve_us_is_an_error(text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        figures((ReplyError(text), ReplyError(text)))
