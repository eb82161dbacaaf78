"""A connection to a Redis Cluster: it routes keys to nodes by slot, with one pipeline per node in each round trip."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from effectonce.errors import StoreUnavailable

from .connection import RedisSocket, Script, Subscription, Word, send_command
from .endpoint import Node, RedisEndpoint, load_driver, parse_node
from .errors import ReplyError
from .record_format import index_keys
from .slots import ClusterNodes, slot_of

MAX_REDIRECTS = 8  # how often one item follows the cluster's redirections; more means that slots are moving now


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
    """See `RedisConnection`. It sends each key to the node that `ClusterNodes` names."""

    is_cluster = True

    def __init__(self, connect: Callable[[RedisEndpoint], RedisSocket], endpoint: RedisEndpoint) -> None:
        self.errors = endpoint.errors
        self._timeout = endpoint.timeout
        self._nodes = ClusterNodes(connect, endpoint)
        self._subscription: Subscription | None = None
        self._pack = load_driver().pack_command

    async def batch(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        if self._nodes.is_stale:
            await self._nodes.load()
        replies: list[Any] = [None] * len(keys)
        pending: list[_Item] = []
        for position, (key, arg) in enumerate(zip(keys, args, strict=True)):
            # The indexes are named as keys too, so that a node answers TRYAGAIN while their slot moves. Otherwise a
            # script could create a second index on the other node, and the first one would be lost.
            touched = (key, *index_keys(key))
            command = self._pack((b"EVALSHA", script.sha, len(touched), *touched, arg))
            slot = slot_of(key)
            pending.append(_Item(position, slot, command, self._nodes.slots[slot]))
        unloaded: set[Node] = set()  # nodes that do not know the script
        for attempt in range(MAX_REDIRECTS):
            outgoing: _Outgoing = {}
            for item in pending:
                if item.node is None:
                    self._nodes.is_stale = True
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
                    item.node, item.asking = self._nodes.redirection(reply, item.node), code == "ASK"
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
                await next(iter(self._nodes.sockets())).pause(0.01 * 2 ** min(attempt, 4))
        for item in pending:
            replies[item.position] = StoreUnavailable(
                f"{self.errors.shown} is moving this key to another node; retry later"
            )
        return replies

    def _final_reply(self, reply: Any, code: str) -> Any:
        """What `batch` returns for an item that is not sent again: the one element of a script's reply, or an error."""
        if type(reply) is list:
            return reply[0]
        self._nodes.is_stale = self._nodes.is_stale or code in ("READONLY", "CLUSTERDOWN", "")
        return reply

    async def _round_trip(self, outgoing: _Outgoing) -> list[tuple[_Item, Any]]:
        """Send everything, then collect the replies, so that the nodes work at the same time. All have one timeout.

        A node that cannot be reached, does not answer or breaks its connection fails its own items; one that did not
        answer is then left alone for a moment. A cancellation drops every connection with replies under way.
        """
        answered: list[tuple[_Item, Any]] = []
        waiting: list[Node] = []
        try:
            for node, commands in outgoing.items():
                try:
                    await self._nodes.socket(node).send(b"".join(command for _, command in commands))
                    waiting.append(node)
                except Exception as error:
                    self._nodes.note_failure(node, error)
                    answered += [(item, error) for item, _ in commands if item is not None]
            deadline = time.monotonic() + self._timeout
            while waiting:
                commands = outgoing[waiting[-1]]
                replies: Sequence[Any]
                try:
                    seconds_left = max(deadline - time.monotonic(), 0.0)
                    replies = await self._nodes.socket(waiting[-1]).receive(len(commands), seconds_left)
                    self._nodes.note_answer(waiting[-1])
                except Exception as error:
                    self._nodes.note_failure(waiting[-1], error)
                    replies = [error] * len(commands)
                waiting.pop()
                answered += [
                    (item, reply) for (item, _), reply in zip(commands, replies, strict=True) if item is not None
                ]
        except BaseException:
            self._nodes.is_stale = True
            for node in waiting:
                self._nodes.socket(node).drop()
            raise
        return answered

    async def nodes(self) -> Sequence[str]:
        await self._nodes.load()
        return list(map(str, self._nodes.primaries()))

    async def command(self, node: str, *words: Word) -> Any:
        target = parse_node(node)
        try:
            reply = await send_command(self._nodes.socket(target), *words)
        except StoreUnavailable as error:
            self._nodes.note_failure(target, error)
            raise
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    async def listen(self, channel: str, timeout: float) -> Sequence[bytes]:
        # A message reaches every node of the cluster, so the subscription may be on any.
        if self._subscription is None:
            await self._nodes.load()
            self._subscription = Subscription(self._nodes.new_socket(self._nodes.primaries()[0]))
        try:
            return await self._subscription.listen(channel, timeout)
        except StoreUnavailable:
            self._subscription = None
            raise

    async def drop(self) -> None:
        """Do nothing: a socket that failed has dropped itself, and those of other nodes are in use."""

    async def close(self) -> None:
        self._nodes.drop()
        if self._subscription is not None:
            self._subscription.drop()
