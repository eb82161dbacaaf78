"""Connections to a Redis Cluster: keys are routed by slot, one pipeline per node and round trip."""

from __future__ import annotations

import time
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any

from effectonce.errors import ConfigurationError, StoreUnavailable, UnsafeStore

from .connection import RedisSocket, Script, Subscription, Word, ask
from .endpoint import RedisEndpoint, load_driver
from .errors import ReplyError

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


class RedisClusterConnection:
    """See `connection.RedisConnection`. The map of slots comes from any node that answers, again when slots moved."""

    def __init__(
        self,
        connect: Callable[[RedisEndpoint], RedisSocket],
        endpoint: RedisEndpoint,
        seeds: Sequence[Node],
        companions: Callable[[bytes], tuple[bytes, ...]],
    ) -> None:
        self.errors = endpoint.errors
        self._connect = connect
        self._endpoint = endpoint
        self._known_nodes: dict[Node, None] = dict.fromkeys(seeds)
        self._companions = companions
        self._slots: list[Node | None] = [None] * SLOTS
        self._slots_are_stale = True
        self._sockets: dict[Node, RedisSocket] = {}
        self._subscription: Subscription | None = None
        self._pack = load_driver().pack_command

    async def batch(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        if self._slots_are_stale:
            await self._load_slots()
        # The indexes are named as keys too, so that the nodes answer TRYAGAIN while their slot moves: a script that
        # created a second index on the other node would lose the first.
        commands = [
            self._pack((b"EVALSHA", script.sha, 1 + len(indexes), key, *indexes, arg))
            for key, arg in zip(keys, args, strict=True)
            for indexes in (self._companions(key),)
        ]
        replies: list[Any] = [None] * len(keys)
        pending = {i: (self._slots[slot_of(key)], False) for i, key in enumerate(keys)}
        unloaded: set[Node] = set()
        for attempt in range(MAX_REDIRECTS):
            batches = _NodeBatches(self._pack, script)
            for i, (node, asking) in pending.items():
                if node is None:
                    self._slots_are_stale = True
                    replies[i] = StoreUnavailable(
                        f"{self.errors.shown} has no node for this key's slot at the moment; retry later"
                    )
                else:
                    batches.add(node, i, commands[i], asking=asking, load=node in unloaded)
            unloaded.clear()
            tried, pending, busy = pending, {}, False
            for node, i, reply in await self._round_trip(batches):
                if type(reply) is list:
                    replies[i] = reply[0]
                    continue
                code = reply.code if isinstance(reply, ReplyError) else ""
                if code in ("MOVED", "ASK"):
                    redirected = _parse_node(str(reply).split(" ")[2], node)
                    if code == "MOVED":
                        self._slots[slot_of(keys[i])], self._slots_are_stale = redirected, True
                    pending[i] = (redirected, code == "ASK")
                elif code == "NOSCRIPT":
                    unloaded.add(node)
                    pending[i] = tried[i]
                elif code == "TRYAGAIN":
                    pending[i], busy = tried[i], True
                else:
                    self._slots_are_stale = self._slots_are_stale or code in ("READONLY", "CLUSTERDOWN", "")
                    replies[i] = reply
            if not pending:
                return replies
            if busy:
                await self._any_socket().pause(0.01 * 2 ** min(attempt, 4))
        for i in pending:
            replies[i] = StoreUnavailable(f"{self.errors.shown} is moving this key to another node; retry later")
        return replies

    async def _round_trip(self, batches: _NodeBatches) -> list[tuple[Node, int, Any]]:
        """Send everything, then collect the replies: the nodes work at the same time, under one timeout.

        A node that cannot be reached, does not answer or breaks its connection fails its own items. A cancellation
        drops every connection that still owes replies.
        """
        replies_by_item: list[tuple[Node, int, Any]] = []
        sent: list[Node] = []
        try:
            for node, commands in batches.commands.items():
                try:
                    await self._at(node).send(b"".join(commands))
                    sent.append(node)
                except Exception as error:
                    replies_by_item += [(node, i, error) for i in batches.items[node] if i >= 0]
            deadline = time.monotonic() + self._endpoint.timeout
            while sent:
                node = sent[-1]
                items = batches.items[node]
                replies: Sequence[Any]
                try:
                    replies = await self._at(node).receive(len(items), max(deadline - time.monotonic(), 0.0))
                except Exception as error:
                    replies = [error] * len(items)
                sent.pop()
                replies_by_item += [(node, i, reply) for i, reply in zip(items, replies, strict=True) if i >= 0]
        except BaseException:
            self._slots_are_stale = True
            for node in sent:
                self._at(node).drop()
            raise
        return replies_by_item

    async def nodes(self) -> Sequence[str]:
        await self._load_slots()
        return sorted({f"{node[0]}:{node[1]}" for node in self._slots if node is not None})

    async def command(self, node: str, *words: Word) -> Any:
        try:
            reply = await ask(self._at(_parse_node(node, ("", 0))), *words)
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

    def _any_socket(self) -> RedisSocket:
        return next(iter(self._sockets.values()))

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


class _NodeBatches:
    """The commands for each node in one round trip, and the item that each reply belongs to (-1: none)."""

    def __init__(self, pack: Callable[[tuple[bytes, ...]], bytes], script: Script) -> None:
        self._pack = pack
        self._script = script
        self.commands: dict[Node, list[bytes]] = {}
        self.items: dict[Node, list[int]] = {}

    def add(self, node: Node, item: int, command: bytes, *, asking: bool, load: bool) -> None:
        commands = self.commands.setdefault(node, [])
        items = self.items.setdefault(node, [])
        if load and not commands:
            commands.append(self._pack((b"SCRIPT", b"LOAD", self._script.source)))
            items.append(-1)
        if asking:
            commands.append(self._pack((b"ASKING",)))
            items.append(-1)
        commands.append(command)
        items.append(item)


def _parse_node(text: str, asked: Node) -> Node:
    """A node from ``host:port`` as the cluster writes it; an empty host means the node that was asked."""
    host, _, port = text.rpartition(":")
    return host or asked[0], int(port)
