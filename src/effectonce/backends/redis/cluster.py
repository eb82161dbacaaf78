"""Connections to a Redis Cluster: keys are routed by slot, one pipeline per node and round trip."""

from __future__ import annotations

import time
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from effectonce.errors import ConfigurationError, StoreUnavailable, UnsafeStore

from .connection import RedisSocket, Script, Subscription, Word, ask
from .endpoint import RedisEndpoint, load_driver
from .errors import ReplyError
from .record_format import companions

SLOTS = 16_384
MAX_REDIRECTS = 8  # how often one item follows the cluster's redirections; more means that slots are moving now

Node = tuple[str, int]


def parse_nodes(text: str) -> list[Node]:
    """The nodes in ``host:port,host``."""
    nodes = []
    for part in text.split(","):
        host, _, port = part.rpartition(":")
        nodes.append((host or port, int(port) if host else 6379))
    return nodes


def slot_of(key: bytes) -> int:
    """The slot of a key: CRC-16 of its hash tag."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    return crc_hqx(key[start + 1 : end] if -1 < start < end - 1 else key, 0) % SLOTS


class _Item(Struct):
    """One item of a batch, on its way to the node of its key's slot."""

    position: int
    slot: int
    command: bytes
    node: Node | None
    asking: bool = False  # the slot is moving to the node, which serves it only after ASKING


#: The commands for each node in one round trip, with the item that each reply belongs to.
_Outgoing = dict[Node, list[tuple[_Item | None, bytes]]]


class RedisClusterConnection:
    """See `connection.RedisConnection`. The map of slots comes from any node that answers, again when slots moved."""

    def __init__(
        self, connect: Callable[[RedisEndpoint], RedisSocket], endpoint: RedisEndpoint, seeds: Sequence[Node]
    ) -> None:
        self.errors = endpoint.errors
        self._connect = connect
        self._endpoint = endpoint
        self._known_nodes: dict[Node, None] = dict.fromkeys(seeds)
        self._slots: list[Node | None] = [None] * SLOTS
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
            # The indexes are named as keys too, so that the nodes answer TRYAGAIN while their slot moves: a script that
            # created a second index on the other node would lose the first.
            touched = (key, *companions(key))
            command = self._pack((b"EVALSHA", script.sha, len(touched), *touched, arg))
            slot = slot_of(key)
            pending.append(_Item(position, slot, command, self._slots[slot]))
        unloaded: set[Node] = set()
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
            pending, busy = [], False
            for item, reply in await self._round_trip(outgoing):
                if type(reply) is list:
                    replies[item.position] = reply[0]
                    continue
                code = reply.code if isinstance(reply, ReplyError) else ""
                if code in ("MOVED", "ASK"):
                    item.node, item.asking = _parse_node(str(reply).split(" ")[2], item.node), code == "ASK"
                    if code == "MOVED":
                        self._slots[item.slot], self._slots_are_stale = item.node, True
                elif code == "NOSCRIPT" and item.node is not None:
                    unloaded.add(item.node)
                elif code == "TRYAGAIN":
                    busy = True
                else:
                    self._slots_are_stale = self._slots_are_stale or code in ("READONLY", "CLUSTERDOWN", "")
                    replies[item.position] = reply
                    continue
                pending.append(item)
            if not pending:
                return replies
            if busy:
                await next(iter(self._sockets.values())).pause(0.01 * 2 ** min(attempt, 4))
        for item in pending:
            replies[item.position] = StoreUnavailable(
                f"{self.errors.shown} is moving this key to another node; retry later"
            )
        return replies

    async def _round_trip(self, outgoing: _Outgoing) -> list[tuple[_Item, Any]]:
        """Send everything, then collect the replies: the nodes work at the same time, under one timeout.

        A node that cannot be reached, does not answer or breaks its connection fails its own items. A cancellation
        drops every connection that still owes replies.
        """
        answered: list[tuple[_Item, Any]] = []
        waiting: list[Node] = []
        try:
            for node, commands in outgoing.items():
                try:
                    await self._at(node).send(b"".join(command for _, command in commands))
                    waiting.append(node)
                except Exception as error:
                    answered += [(item, error) for item, _ in commands if item is not None]
            deadline = time.monotonic() + self._endpoint.timeout
            while waiting:
                commands = outgoing[waiting[-1]]
                replies: Sequence[Any]
                try:
                    left = max(deadline - time.monotonic(), 0.0)
                    replies = await self._at(waiting[-1]).receive(len(commands), left)
                except Exception as error:
                    replies = [error] * len(commands)
                waiting.pop()
                answered += [
                    (item, reply) for (item, _), reply in zip(commands, replies, strict=True) if item is not None
                ]
        except BaseException:
            self._slots_are_stale = True
            for node in waiting:
                self._at(node).drop()
            raise
        return answered

    async def nodes(self) -> Sequence[str]:
        await self._load_slots()
        return sorted({f"{node[0]}:{node[1]}" for node in self._slots if node is not None})

    async def command(self, node: str, *words: Word) -> Any:
        try:
            reply = await ask(self._at(_parse_node(node, None)), *words)
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
            self._subscription = Subscription(self._connect(self._endpoint.at(*node)))
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

    def _at(self, node: Node) -> RedisSocket:
        socket = self._sockets.get(node)
        if socket is None:
            socket = self._sockets[node] = self._connect(self._endpoint.at(*node))
        return socket

    async def _load_slots(self) -> None:
        """Ask one node after another for the slots, until one that knows them answers."""
        last_error: Exception = StoreUnavailable(
            f"{self.errors.shown} has no node that answers; name others with nodes="
        )
        for node in list(self._known_nodes):
            try:
                reply = await ask(self._at(node), "CLUSTER", "SLOTS")
            except (StoreUnavailable, UnsafeStore) as error:  # it may be a replica's, which does not matter here
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

    def _store_slots(self, reply: list[Any], asked: Node) -> None:
        slots: list[Node | None] = [None] * SLOTS
        for first, last, *servers in reply:
            nodes = [(bytes(host or b"").decode() or asked[0], int(port)) for host, port, *_ in servers]
            slots[first : last + 1] = [nodes[0]] * (last + 1 - first)
            # Also the replicas: when a primary dies, they know its successor.
            self._known_nodes.update(dict.fromkeys(nodes))
        self._slots, self._slots_are_stale = slots, False


def _parse_node(text: str, asked: Node | None) -> Node:
    """A node from ``host:port`` as the cluster writes it; an empty host means the node that was asked."""
    host, _, port = text.rpartition(":")
    return host or (asked[0] if asked else ""), int(port)
