"""The slots of a Redis Cluster, the nodes that serve them, and a socket to each node."""

from __future__ import annotations

import time
from binascii import crc_hqx
from collections.abc import Callable, Iterable
from typing import Any, Final

from effectonce.errors import BrokerUnavailable, ConfigurationError, StoreUnavailable, UnsafeStore

from .connection import RedisSocket, send_command
from .endpoint import Node, RedisEndpoint
from .errors import ReplyError

CLUSTER_SLOTS: Final = 16_384
#: After a node did not answer, its slots fail at once for so long: each wait for it would delay those of other nodes.
DOWN_NODE_PAUSE_S: Final = 1.0
#: How long a node that did not answer is then given to accept a connection.
DOWN_NODE_CONNECT_S: Final = 0.25

_Unavailable = (StoreUnavailable, BrokerUnavailable)


def slot_of(key: bytes) -> int:
    """The slot of a key: the CRC-16 of its hash tag, or of all of it where it has none."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    return crc_hqx(key[start + 1 : end] if -1 < start < end - 1 else key, 0) % CLUSTER_SLOTS


class ClusterNodes:
    """The map of slots, which is read from any node that answers, and again when slots have moved (``is_stale``)."""

    def __init__(self, connect: Callable[[RedisEndpoint], RedisSocket], endpoint: RedisEndpoint) -> None:
        self.is_stale = True
        self._connect = connect
        self._endpoint = endpoint
        self._errors = endpoint.errors
        self._known: dict[Node, None] = dict.fromkeys(endpoint.cluster)
        self.slots: list[Node | None] = [None] * CLUSTER_SLOTS  # the node of each slot, where one is known
        self._sockets: dict[Node, RedisSocket] = {}
        self._down_until: dict[Node, float] = {}

    def new_socket(self, node: Node) -> RedisSocket:
        return self._connect(self._endpoint.with_address(*node))

    def socket(self, node: Node) -> RedisSocket:
        """The socket to ``node``. Raises where it did not answer a moment ago."""
        if self._down_until and self._down_until.get(node, 0.0) > time.monotonic():
            raise self._errors.unavailable(
                f"{self._errors.shown} (node {node}) did not answer a moment ago; retry later"
            )
        socket = self._sockets.get(node)
        if socket is None:
            socket = self._sockets[node] = self.new_socket(node)
        return socket

    def sockets(self) -> Iterable[RedisSocket]:
        return self._sockets.values()

    def primaries(self) -> list[Node]:
        return sorted({node for node in self.slots if node is not None})

    # -- nodes that do not answer

    def note_failure(self, node: Node, error: Exception) -> None:
        """Take down that a request to ``node`` failed with ``error``. A connection that broke is opened again at once;
        a node that did not answer is left alone for a moment, and is then given less time to accept a connection."""
        self.is_stale = True
        if isinstance(error, _Unavailable) and not isinstance(error, self._errors.connection_lost):
            self._down_until[node] = time.monotonic() + DOWN_NODE_PAUSE_S
            if node in self._sockets:
                endpoint = self._sockets[node].endpoint
                endpoint.connect_timeout = min(endpoint.connect_timeout, DOWN_NODE_CONNECT_S)

    def note_answer(self, node: Node) -> None:
        """Take down that ``node``, which had failed, has answered."""
        if self._down_until.pop(node, None) is not None:
            self._sockets[node].endpoint.connect_timeout = self._endpoint.connect_timeout

    # -- the map of slots

    async def load(self) -> None:
        """Ask one node after another for the map of slots, until one answers that has it. Nodes that did not answer a
        moment ago are asked last."""
        last_error: Exception = self._errors.unavailable(
            f"{self._errors.shown} has no node that answers; name others with nodes="
        )
        for node in sorted(self._known, key=lambda node: self._down_until.get(node, 0.0)):
            try:
                reply = await send_command(self.socket(node), "CLUSTER", "SLOTS")
            except (*_Unavailable, UnsafeStore) as error:  # UnsafeStore may be a replica's: ask the next node
                self.note_failure(node, error)
                last_error = error
                continue
            self.note_answer(node)
            if isinstance(reply, ReplyError):
                if "cluster support disabled" in str(reply):
                    raise ConfigurationError(
                        f"{self._errors.shown} is not a Redis Cluster; write its URL with redis://"
                    )
                last_error = self._errors.translate(reply)
                continue
            if reply:
                self._store(reply, node)
                return
            last_error = self._errors.unavailable(
                f"{self._errors.shown} has not assigned its slots to nodes yet; finish its set-up"
            )
        raise last_error

    def _store(self, reply: list[Any], asked_node: Node) -> None:
        slots: list[Node | None] = [None] * CLUSTER_SLOTS
        for first, last, *servers in reply:
            nodes = [_read_server(server, asked_node) for server in servers]
            slots[first : last + 1] = [nodes[0]] * (last + 1 - first)  # the primary; its replicas follow
            # Remember the replicas, too: when a primary dies, they know its successor.
            self._known.update(dict.fromkeys(nodes))
        self.slots, self.is_stale = slots, False

    def redirection(self, reply: ReplyError, asked_node: Node | None) -> Node:
        """The node that ``MOVED slot host:port`` or ``ASK slot host:port`` names. A slot that has moved stays there.

        Without a host it is where the node is that was asked. ``?`` is a host that the cluster does not know: then it
        is the only known node with that port, or else as without a host.
        """
        code, slot, place = str(reply).split(" ")[:3]
        host, _, port = place.rpartition(":")
        if host == "?":
            known = [node for node in self._known if node.port == int(port)]
            host = known[0].host if len(known) == 1 else ""
        node = Node(host or (asked_node.host if asked_node else ""), int(port))
        if code == "MOVED":
            self.slots[int(slot)], self.is_stale = node, True
        return node

    def drop(self) -> None:
        """Drop all sockets; the map of slots is read again."""
        self.is_stale = True
        for socket in self._sockets.values():
            socket.drop()


def _read_server(server: list[Any], asked_node: Node) -> Node:
    """Read one server of a reply to CLUSTER SLOTS: its host, its port, its id, and where there is more to say, names
    with values. No host means that of the node that was asked; ``?`` one that is not known, which may have an IP."""
    host, port = bytes(server[0] or b"").decode(), int(server[1])
    if host == "?":
        metadata = server[3] if len(server) > 3 else []
        host = bytes(dict(zip(metadata[::2], metadata[1::2], strict=False)).get(b"ip", b"")).decode()
    return Node(host or asked_node.host, port)
