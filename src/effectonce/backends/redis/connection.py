"""Connections to Redis: running scripts and commands over sockets.

A **socket** (`socket`, sync or async) moves bytes and replies, framed by hiredis. A **connection** runs scripts and
commands over sockets: `RedisNodeConnection` on one server, `cluster.RedisClusterConnection` on many, and
`client_connection.RedisClientConnection` through a client that the caller already has; those of brokers are in
`broker_connection`. The code is the same for sync
and async; over a sync socket nothing ever suspends.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, Protocol

from .endpoint import RedisEndpoint, load_driver
from .errors import RedisErrors, ReplyError

#: A command or an argument, as hiredis packs it.
Word = str | bytes | int


class Script:
    """One script made of a package's ``.lua`` files, and the SHA-1 that EVALSHA knows it by."""

    def __init__(self, *names: str, package: str = "effectonce.backends.redis") -> None:
        folder = resources.files(package)
        self.source = b"\n".join(folder.joinpath(f"{name}.lua").read_bytes() for name in names)
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


class RedisSocket(Protocol):
    """One socket, sync or async. `send` connects it where needed, and any failure drops it."""

    endpoint: RedisEndpoint

    async def send(self, data: bytes) -> None: ...

    async def receive(self, count: int | None, within: float | None = None) -> list[Any]:
        """Return exactly ``count`` replies. Error replies are returned as `ReplyError` objects, not raised. ``within``
        is in seconds; None: the endpoint's timeout.

        ``count=None`` is for a subscription: return what the server has pushed, as soon as there is something; [] after
        ``within``.
        """

    async def pause(self, seconds: float) -> None: ...

    def drop(self) -> None:
        """Close without sending anything; the next `send` connects again."""


class RedisConnection(Protocol):
    """What a port needs of Redis, be it one server, a cluster, or a client of the caller's. One caller at a time."""

    errors: RedisErrors
    #: Whether there are several nodes, of which one may fail alone.
    is_cluster: bool

    async def batch(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        """Run ``script`` for each item, atomically at the node of its key. Returns one element per item; that of a
        failed item is a `ReplyError` or one of our exceptions."""

    async def nodes(self) -> Sequence[str]:
        """The names of the primaries, sorted; [""] where there is no cluster."""

    async def command(self, node: str, *words: Word) -> Any:
        """One command on one node; an error is raised as `ReplyError`."""

    async def listen(self, channel: str, timeout: float) -> Sequence[bytes]:
        """The messages published since the last call, without empty ones. The first call subscribes."""

    async def drop(self) -> None:
        """Drop the socket that failed; the next use connects again."""

    async def close(self) -> None: ...


async def send_command(socket: RedisSocket, *words: Word) -> Any:
    """Send one command, and return its reply, which may be a `ReplyError`."""
    await socket.send(load_driver().pack_command(words))
    (reply,) = await socket.receive(1)
    return reply


async def run_script(
    connection: RedisConnection, node: str, script: Script, keys: Sequence[bytes], args: Sequence[bytes]
) -> Sequence[Any]:
    """Run ``script`` by `RedisConnection.command`. Where the server does not know it, load it first."""
    words: tuple[Word, ...] = ("EVALSHA", script.sha, len(keys), *keys, *args)
    try:
        try:
            reply: Sequence[Any] = await connection.command(node, *words)
        except ReplyError as error:
            if error.code != "NOSCRIPT":
                raise
            await connection.command(node, "SCRIPT", "LOAD", script.source)
            reply = await connection.command(node, *words)
    except ReplyError as error:
        raise connection.errors.translate(error) from error
    return reply


class RedisNodeConnection:
    """See `RedisConnection`. One server, on one socket."""

    is_cluster = False

    def __init__(self, connect: Callable[[RedisEndpoint], RedisSocket], endpoint: RedisEndpoint) -> None:
        self.errors = endpoint.errors
        self._timeout = endpoint.timeout
        self._socket = connect(endpoint)
        self._subscription = Subscription(connect(endpoint))
        self._pack = load_driver().pack_command

    async def exchange(self, *commands: tuple[Word, ...], block: float = 0.0, check: bool = True) -> list[Any]:
        """Send ``commands`` in one write, and return one reply for each.

        ``block`` is how many seconds the server itself may wait before it replies. Our exception for the first error
        reply is raised; with ``check=False`` error replies are returned as `ReplyError`.
        """
        await self._socket.send(b"".join(map(self._pack, commands)))
        replies = await self._socket.receive(len(commands), self._timeout + block)
        if check:
            for reply in replies:
                if isinstance(reply, ReplyError):
                    raise self.translate(reply)
        return replies

    async def batch(self, script: Script, keys: Sequence[bytes], args: Sequence[Word]) -> Sequence[Any]:
        command = (b"EVALSHA", script.sha, len(keys), *keys, *args)
        (reply,) = await self.exchange(command, check=False)
        if isinstance(reply, ReplyError):
            if reply.code != "NOSCRIPT":
                raise self.translate(reply)
            _, reply = await self.exchange((b"SCRIPT", b"LOAD", script.source), command)
        elements: Sequence[Any] = reply
        return elements

    def translate(self, reply: ReplyError) -> Exception:
        """Return our exception for an error reply. If the server turns out to be a replica, drop the connection."""
        error = self.errors.translate(reply)
        if isinstance(error, self.errors.connection_lost):
            self._socket.drop()
        return error

    async def nodes(self) -> Sequence[str]:
        return ("",)

    async def command(self, node: str, *words: Word) -> Any:
        (reply,) = await self.exchange(words, check=False)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    async def listen(self, channel: str, timeout: float) -> Sequence[bytes]:
        return await self._subscription.listen(channel, timeout)

    async def drop(self) -> None:
        self._socket.drop()

    async def close(self) -> None:
        self._socket.drop()
        self._subscription.drop()


class Subscription:
    """A subscription to a channel, on a socket of its own. A silent server is pinged, to notice a dead one."""

    def __init__(self, socket: RedisSocket) -> None:
        self._socket = socket
        self._subscribed = False
        self._pinged_at: float | None = None

    async def listen(self, channel: str, timeout: float) -> list[bytes]:
        socket = self._socket
        try:
            if not self._subscribed:
                socket.drop()
                reply = await send_command(socket, "SUBSCRIBE", channel)
                if isinstance(reply, ReplyError):
                    raise socket.endpoint.errors.translate(reply)
                self._subscribed, self._pinged_at = True, None
            deadline = time.monotonic() + timeout
            while True:
                remaining = deadline - time.monotonic()
                pushed = await socket.receive(None, max(remaining, 0.0))
                if pushed:
                    self._pinged_at = None
                    messages = [
                        push[2] for push in pushed if isinstance(push, list) and push[0] == b"message" and push[2]
                    ]
                    if messages:
                        return messages
                if remaining <= 0:
                    await self._ping(silent=not pushed)
                    return []
        except BaseException:
            self.drop()
            raise

    async def _ping(self, *, silent: bool) -> None:
        if self._pinged_at is None:
            self._pinged_at = time.monotonic()
            await self._socket.send(load_driver().pack_command(("PING",)))
        elif silent and time.monotonic() - self._pinged_at > self._socket.endpoint.timeout:
            raise self._socket.endpoint.errors.timeout_error(self._socket.endpoint.timeout)

    def drop(self) -> None:
        self._subscribed = False
        self._socket.drop()
