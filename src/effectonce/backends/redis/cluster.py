"""A Redis Cluster by our own wire: keys are routed by slot, one pipeline per node and round trip."""

from __future__ import annotations

import time
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any

from effectonce.errors import ConfigurationError, StoreUnavailable, UnsafeStore

from .connection import Connection, Endpoint, ReplyError, Script, Subscription, ask, driver, translate

SLOTS = 16_384
#: How often one item is sent to where the cluster says it is; more means that slots are moving right now.
TURNS = 8

Node = tuple[str, int]


def nodes_in(text: str) -> list[Node]:
    """The nodes of ``host:port,host``."""
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


class ClusterWire:
    """See `redis.Wire`. The slots are learned from any node that answers, and again when they have moved."""

    def __init__(
        self,
        connect: Callable[[Endpoint], Connection],
        endpoint: Endpoint,
        seeds: Sequence[Node],
        companions: Callable[[bytes], tuple[bytes, ...]],
    ) -> None:
        self.shown = endpoint.shown
        self._connect = connect
        self._endpoint = endpoint
        self._known: dict[Node, None] = dict.fromkeys(seeds)
        self._companions = companions
        self._slots: list[Node | None] = [None] * SLOTS
        self._stale = True
        self._connections: dict[Node, Connection] = {}
        self._subscription: Subscription | None = None
        self._pack = driver().pack_command

    async def batch(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        if self._stale:
            await self._learn()
        # The indexes are named too, so that while their slot moves the nodes say TRYAGAIN: a script that made a
        # second index on the other node would lose the first.
        commands = [
            self._pack((b"EVALSHA", script.sha, 1 + len(beside), key, *beside, arg))
            for key, arg in zip(keys, args, strict=True)
            for beside in (self._companions(key),)
        ]
        replies: list[Any] = [None] * len(keys)
        pending = {i: (self._slots[slot_of(key)], False) for i, key in enumerate(keys)}
        unloaded: set[Node] = set()
        for turn in range(TURNS):
            trip = _Trip(self._pack, script)
            for i, (node, asking) in pending.items():
                if node is None:
                    self._stale = True
                    replies[i] = StoreUnavailable(f"{self.shown} has no node for this key's slot at the moment")
                else:
                    trip.add(node, i, commands[i], asking=asking, load=node in unloaded)
            unloaded.clear()
            tried, pending, busy = pending, {}, False
            for node, i, reply in await self._travel(trip):
                if type(reply) is list:
                    replies[i] = reply[0]
                    continue
                code = reply.code if isinstance(reply, ReplyError) else ""
                if code in ("MOVED", "ASK"):
                    there = _place(str(reply).split(" ")[2], node)
                    if code == "MOVED":
                        self._slots[slot_of(keys[i])], self._stale = there, True
                    pending[i] = (there, code == "ASK")
                elif code == "NOSCRIPT":
                    unloaded.add(node)
                    pending[i] = tried[i]
                elif code == "TRYAGAIN":
                    pending[i], busy = tried[i], True
                else:
                    self._stale = self._stale or code in ("READONLY", "CLUSTERDOWN", "")
                    replies[i] = reply
            if not pending:
                return replies
            if busy:
                await self._any_connection().pause(0.01 * 2 ** min(turn, 4))
        for i in pending:
            replies[i] = StoreUnavailable(f"{self.shown} is moving this key to another node")
        return replies

    async def _travel(self, trip: _Trip) -> list[tuple[Node, int, Any]]:
        """Send everything, then collect: the nodes work at the same time, and one timeout is for all of them.

        A node that cannot be reached, does not answer or breaks its connection fails its own items. A cancellation
        drops every connection that still owes replies.
        """
        found: list[tuple[Node, int, Any]] = []
        sent: list[Node] = []
        try:
            for node, commands in trip.commands.items():
                try:
                    await self._at(node).send(b"".join(commands))
                    sent.append(node)
                except Exception as error:
                    found += [(node, i, error) for i in trip.items[node] if i >= 0]
            deadline = time.monotonic() + self._endpoint.timeout
            while sent:
                node = sent[-1]
                items = trip.items[node]
                replies: Sequence[Any]
                try:
                    replies = await self._at(node).receive(len(items), max(deadline - time.monotonic(), 0.0))
                except Exception as error:
                    replies = [error] * len(items)
                sent.pop()
                found += [(node, i, reply) for i, reply in zip(items, replies, strict=True) if i >= 0]
        except BaseException:
            self._stale = True
            for node in sent:
                self._at(node).drop()
            raise
        return found

    async def batch_at(self, node: str, script: Script, args: Sequence[bytes]) -> Sequence[Any]:
        command = (b"EVALSHA", script.sha, b"0", *args)
        try:
            reply = await self.command(node, *command)
        except ReplyError as error:
            if error.code != "NOSCRIPT":
                raise translate(error, self.shown) from error
            await self.command(node, b"SCRIPT", b"LOAD", script.source)
            reply = await self.command(node, *command)
        found: Sequence[Any] = reply
        return found

    async def nodes(self) -> Sequence[str]:
        await self._learn()
        return sorted({f"{node[0]}:{node[1]}" for node in self._slots if node is not None})

    async def command(self, node: str, *words: str | bytes) -> Any:
        try:
            reply = await ask(self._at(_place(node, ("", 0))), *words)
        except StoreUnavailable:
            self._stale = True
            raise
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    async def listen(self, channel: str, timeout: float) -> Sequence[bytes]:
        # A message reaches every node of the cluster, so any one will do.
        if self._subscription is None:
            await self._learn()
            node = next(node for node in self._slots if node is not None)
            self._subscription = Subscription(self._connect(self._endpoint.at(*node)))
        try:
            return await self._subscription.listen(channel, timeout)
        except StoreUnavailable:
            self._subscription = None
            raise

    async def drop(self) -> None:
        self._stale = True
        for connection in self._connections.values():
            connection.drop()

    async def close(self) -> None:
        await self.drop()
        if self._subscription is not None:
            self._subscription.drop()

    def _at(self, node: Node) -> Connection:
        connection = self._connections.get(node)
        if connection is None:
            connection = self._connections[node] = self._connect(self._endpoint.at(*node))
        return connection

    def _any_connection(self) -> Connection:
        return next(iter(self._connections.values()))

    async def _learn(self) -> None:
        """Ask one node after another for the slots, until one that knows them answers."""
        problem: Exception = StoreUnavailable(f"{self.shown} has no node that answers")
        for node in list(self._known):
            try:
                reply = await ask(self._at(node), "CLUSTER", "SLOTS")
            except (StoreUnavailable, UnsafeStore) as error:  # perhaps of a replica, and of no matter here
                problem = error
                continue
            if isinstance(reply, ReplyError):
                if "cluster support disabled" in str(reply):
                    raise ConfigurationError(f"{self.shown} is not a Redis Cluster; write its URL with redis://")
                problem = translate(reply, self.shown)
                continue
            if reply:
                self._remember(reply, node)
                return
            problem = StoreUnavailable(f"{self.shown} has given its slots to no node yet")
        raise problem

    def _remember(self, reply: list[Any], asked: Node) -> None:
        slots: list[Node | None] = [None] * SLOTS
        for first, last, *servers in reply:
            places = [(bytes(host or b"").decode() or asked[0], int(port)) for host, port, *_ in servers]
            slots[first : last + 1] = [places[0]] * (last + 1 - first)
            # Replicas too: when a primary dies they know who follows it.
            self._known.update(dict.fromkeys(places))
        self._slots, self._stale = slots, False


class _Trip:
    """What goes to each node in one round trip, and which item each reply belongs to (-1: to none)."""

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


def _place(text: str, asked: Node) -> Node:
    """``host:port`` as the cluster writes it; an empty host is the one that was asked."""
    host, _, port = text.rpartition(":")
    return host or asked[0], int(port)
