"""The connections of a broker, which are always async: to one server, or to the nodes of a cluster."""

from __future__ import annotations

import copy
from typing import Any, Final, Self

from .connection import RedisNodeConnection, Word
from .endpoint import RedisEndpoint
from .errors import ReplyError
from .slots import ClusterNodes, slot_of
from .socket import AsyncRedisSocket

#: How often one exchange follows the cluster's redirections. More means that the queue is moving now.
MAX_REDIRECTS: Final = 8


class RedisBrokerConnection(RedisNodeConnection):
    """The connection of a broker to one server."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        super().__init__(AsyncRedisSocket, endpoint)

    def of_queue(self, key: str) -> Self:
        """The connection for the queue that has this key: where there is a cluster, to the node of its slot."""
        return self

    async def call(self, *words: Word) -> Any:
        """Send one command, and return its reply. An error reply is raised as our exception."""
        return (await self.exchange(words))[0]


class RedisClusterBrokerConnection(RedisBrokerConnection):
    """The connection of a broker to a cluster. All keys of a queue are in one slot. Connections that `of_queue` made
    share the sockets; one caller at a time uses them."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        super().__init__(endpoint)
        self._nodes = ClusterNodes(AsyncRedisSocket, endpoint)
        self._slot = 0

    def of_queue(self, key: str) -> Self:
        view = copy.copy(self)
        view._slot = slot_of(key.encode())
        return view

    async def exchange(self, *commands: tuple[Word, ...], block: float = 0.0, check: bool = True) -> list[Any]:
        """See `RedisNodeConnection.exchange`. Where the slot has moved, all commands are sent again to its new node.

        Those that were carried out before are then repeated, so the commands of one exchange must allow that. (A
        redirected transaction is discarded as a whole.)
        """
        nodes, replies, asking = self._nodes, list[Any](), False
        if nodes.is_stale:
            await nodes.load()
        node = nodes.slots[self._slot]
        for attempt in range(MAX_REDIRECTS):
            if node is None:
                nodes.is_stale = True
                raise self.errors.unavailable(f"{self.errors.shown} has no node for this queue's slot at the moment")
            try:
                socket = nodes.socket(node)
                sent = _with_asking(commands) if asking else commands
                await socket.send(b"".join(map(self._pack, sent)))
                replies = await socket.receive(len(sent), self._timeout + block)
                nodes.note_answer(node)
            except Exception as error:
                nodes.note_failure(node, error)
                raise
            if asking:
                replies = [reply for command, reply in zip(sent, replies, strict=True) if command != ("ASKING",)]
            redirection = next((reply for reply in replies if _is_redirection(reply)), None)
            if redirection is None:
                break
            if redirection.code == "TRYAGAIN":
                await socket.pause(0.01 * 2 ** min(attempt, 4))
            else:
                node, asking = nodes.redirection(redirection, node), redirection.code == "ASK"
        if check:
            for reply in replies:
                if isinstance(reply, ReplyError):
                    raise self.translate(reply)
        return replies

    def translate(self, reply: ReplyError) -> Exception:
        """Return our exception for an error reply. The slots are read again where it says that the cluster has
        changed."""
        if reply.code in ("MOVED", "ASK"):
            return self.errors.unavailable(f"{self.errors.shown} is moving this queue to another node; retry later")
        self._nodes.is_stale = self._nodes.is_stale or reply.code in ("READONLY", "CLUSTERDOWN")
        return self.errors.translate(reply)

    async def close(self) -> None:
        self._nodes.drop()


def open_connection(endpoint: RedisEndpoint) -> RedisBrokerConnection:
    """Make the connection of a broker. It connects when it is first used."""
    return RedisClusterBrokerConnection(endpoint) if endpoint.cluster else RedisBrokerConnection(endpoint)


def _is_redirection(reply: Any) -> bool:
    return isinstance(reply, ReplyError) and reply.code in ("MOVED", "ASK", "TRYAGAIN")


def _with_asking(commands: tuple[tuple[Word, ...], ...]) -> tuple[tuple[Word, ...], ...]:
    """Put ASKING before each command, without which a node does not serve a slot that is moving to it. For a
    transaction, once before MULTI is enough: inside, it would only be queued."""
    if commands[0] == ("MULTI",):
        return (("ASKING",), *commands)
    return tuple(command for pair in ((("ASKING",), command) for command in commands) for command in pair)
