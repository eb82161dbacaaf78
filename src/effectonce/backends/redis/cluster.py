"""A connection to a Redis Cluster: it routes keys to nodes by slot, with one pipeline per node in each round trip."""

from __future__ import annotations

import time
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from effectonce.errors import ConfigurationError, StoreUnavailable, UnsafeStore

from .connection import RedisSocket, Script, Subscription, Word, send_command
from .endpoint import RedisEndpoint, load_driver
from .errors import ReplyError
from .record_format import index_keys

CLUSTER_SLOTS = 16_384
MAX_REDIRECTS = 8  # how often one item follows the cluster's redirections; more means that slots are moving now


class Node(NamedTuple):
    """The address of a node."""

    host: str
    port: int


def parse_nodes(text: str) -> list[Node]:
    """Parse ``host:port,host``. The port is 6379 by default."""
    nodes = []
    for part in text.split(","):
        host, _, port = part.rpartition(":")
        nodes.append(Node(host, int(port)) if host else Node(part, 6379))
    return nodes


def slot_of(key: bytes) -> int:
    """The slot of a key: the CRC-16 of its hash tag, or of all of it where it has none."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    return crc_hqx(key[start + 1 : end] if -1 < start < end - 1 else key, 0) % CLUSTER_SLOTS


class _Item(Struct):
    """One item of a batch, until its node has answered it."""

    position: int
    slot: int
    command: bytes
    node: Node | None
    asking: bool = False  # the slot is moving to ``node``, which serves it only after ASKING


#: The commands for each node in one round trip, each with the item that its reply belongs to; None: its reply does not
#: matter.
_Outgoing = dict[Node, list[tuple[_Item | None, bytes]]]


class RedisClusterConnection:
    """See `connection.RedisConnection`. It reads the map of slots from any node that answers, and again when slots have
    moved."""

    def __init__(
        self, connect: Callable[[RedisEndpoint], RedisSocket], endpoint: RedisEndpoint, seeds: Sequence[Node]
    ) -> None:
        self.errors = endpoint.errors
        self._connect = connect
        self._endpoint = endpoint
        self._known_nodes: dict[Node, None] = dict.fromkeys(seeds)
        self._slots: list[Node | None] = [None] * CLUSTER_SLOTS
        self._slots_are_stale = True
        self._sockets: dict[Node, RedisSocket] = {}
        self._subscription: Subscription | None = None
        self._pack = load_driver().pack_command

    async def batch(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        if self._slots_are_stale:
            await self._load_slots()
        replies: list[Any] = [None] * len(keys)
        pending: list[_Item] = []
        for position, (key, arg) in enumerate(zip(keys, args, strict=True)):
            # The indexes are named as keys too, so that a node answers TRYAGAIN while their slot moves. Otherwise a
            # script could create a second index on the other node, and the first one would be lost.
            touched = (key, *index_keys(key))
            command = self._pack((b"EVALSHA", script.sha, len(touched), *touched, arg))
            slot = slot_of(key)
            pending.append(_Item(position, slot, command, self._slots[slot]))
        unloaded: set[Node] = set()  # nodes that do not know the script
        for attempt in range(MAX_REDIRECTS):
            outgoing: _Outgoing = {}
            for item in pending:
                if item.node is None:
                    self._slots_are_stale = True
                    replies[item.position] = StoreUnavailable(
                        f"{self.errors.shown} has no node for this key's slot at the moment; retry later"
                    )
                    continue
                commands = outgoing.setdefault(item.node, [])
                if item.node in unloaded:
                    unloaded.remove(item.node)
                    commands.append((None, self._pack((b"SCRIPT", b"LOAD", script.source))))
                if item.asking:
                    commands.append((None, self._pack((b"ASKING",))))
                commands.append((item, item.command))
            pending, must_pause = [], False
            for item, reply in await self._round_trip(outgoing):
                code = reply.code if isinstance(reply, ReplyError) else ""
                if code in ("MOVED", "ASK"):
                    self._redirect(item, reply)
                elif code == "NOSCRIPT" and item.node is not None:
                    unloaded.add(item.node)
                elif code == "TRYAGAIN":
                    must_pause = True
                else:
                    replies[item.position] = self._final_reply(reply, code)
                    continue
                pending.append(item)
            if not pending:
                return replies
            if must_pause:
                await next(iter(self._sockets.values())).pause(0.01 * 2 ** min(attempt, 4))
        for item in pending:
            replies[item.position] = StoreUnavailable(
                f"{self.errors.shown} is moving this key to another node; retry later"
            )
        return replies

    def _redirect(self, item: _Item, reply: ReplyError) -> None:
        """Follow a redirection: ``MOVED`` or ``ASK``, the slot, and the node. A slot that has moved stays there; one
        that is moving (ASK) is at the other node for this item only."""
        item.node, item.asking = _parse_node(str(reply).split(" ")[2], item.node), reply.code == "ASK"
        if not item.asking:
            self._slots[item.slot], self._slots_are_stale = item.node, True

    def _final_reply(self, reply: Any, code: str) -> Any:
        """What `batch` returns for an item that is not sent again: the one element of a script's reply, or an error."""
        if type(reply) is list:
            return reply[0]
        self._slots_are_stale = self._slots_are_stale or code in ("READONLY", "CLUSTERDOWN", "")
        return reply

    async def _round_trip(self, outgoing: _Outgoing) -> list[tuple[_Item, Any]]:
        """Send everything, then collect the replies, so that the nodes work at the same time. All have one timeout.

        A node that cannot be reached, does not answer or breaks its connection fails its own items. A cancellation
        drops every connection with replies under way.
        """
        answered: list[tuple[_Item, Any]] = []
        waiting: list[Node] = []
        try:
            for node, commands in outgoing.items():
                try:
                    await self._socket_of(node).send(b"".join(command for _, command in commands))
                    waiting.append(node)
                except Exception as error:
                    answered += [(item, error) for item, _ in commands if item is not None]
            deadline = time.monotonic() + self._endpoint.timeout
            while waiting:
                commands = outgoing[waiting[-1]]
                replies: Sequence[Any]
                try:
                    seconds_left = max(deadline - time.monotonic(), 0.0)
                    replies = await self._socket_of(waiting[-1]).receive(len(commands), seconds_left)
                except Exception as error:
                    replies = [error] * len(commands)
                waiting.pop()
                answered += [
                    (item, reply) for (item, _), reply in zip(commands, replies, strict=True) if item is not None
                ]
        except BaseException:
            self._slots_are_stale = True
            for node in waiting:
                self._socket_of(node).drop()
            raise
        return answered

    async def nodes(self) -> Sequence[str]:
        await self._load_slots()
        return sorted({f"{node.host}:{node.port}" for node in self._slots if node is not None})

    async def command(self, node: str, *words: Word) -> Any:
        try:
            reply = await send_command(self._socket_of(_parse_node(node, None)), *words)
        except StoreUnavailable:
            self._slots_are_stale = True
            raise
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    async def listen(self, channel: str, timeout: float) -> Sequence[bytes]:
        # A message reaches every node of the cluster, so the subscription may be on any.
        if self._subscription is None:
            await self._load_slots()
            node = next(node for node in self._slots if node is not None)
            self._subscription = Subscription(self._connect(self._endpoint.with_address(*node)))
        try:
            return await self._subscription.listen(channel, timeout)
        except StoreUnavailable:
            self._subscription = None
            raise

    async def drop(self) -> None:
        self._slots_are_stale = True
        for socket in self._sockets.values():
            socket.drop()

    async def close(self) -> None:
        await self.drop()
        if self._subscription is not None:
            self._subscription.drop()

    def _socket_of(self, node: Node) -> RedisSocket:
        socket = self._sockets.get(node)
        if socket is None:
            socket = self._sockets[node] = self._connect(self._endpoint.with_address(*node))
        return socket

    async def _load_slots(self) -> None:
        """Ask one node after another for the map of slots, until one answers that has it."""
        last_error: Exception = StoreUnavailable(
            f"{self.errors.shown} has no node that answers; name others with nodes="
        )
        for node in list(self._known_nodes):
            try:
                reply = await send_command(self._socket_of(node), "CLUSTER", "SLOTS")
            except (StoreUnavailable, UnsafeStore) as error:  # UnsafeStore may be a replica's: ask the next node
                last_error = error
                continue
            if isinstance(reply, ReplyError):
                if "cluster support disabled" in str(reply):
                    raise ConfigurationError(f"{self.errors.shown} is not a Redis Cluster; write its URL with redis://")
                last_error = self.errors.translate(reply)
                continue
            if reply:
                self._store_slots(reply, node)
                return
            last_error = StoreUnavailable(
                f"{self.errors.shown} has not assigned its slots to nodes yet; finish its set-up"
            )
        raise last_error

    def _store_slots(self, reply: list[Any], asked_node: Node) -> None:
        slots: list[Node | None] = [None] * CLUSTER_SLOTS
        for first, last, *servers in reply:
            nodes = [Node(bytes(host or b"").decode() or asked_node.host, int(port)) for host, port, *_ in servers]
            slots[first : last + 1] = [nodes[0]] * (last + 1 - first)  # the primary; its replicas follow
            # Remember the replicas, too: when a primary dies, they know its successor.
            self._known_nodes.update(dict.fromkeys(nodes))
        self._slots, self._slots_are_stale = slots, False


def _parse_node(text: str, asked_node: Node | None) -> Node:
    """Parse ``host:port`` as the cluster writes it. Without a host it means the host of the node that was asked."""
    host, _, port = text.rpartition(":")
    return Node(host or (asked_node.host if asked_node else ""), int(port))
