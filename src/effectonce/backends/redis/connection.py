"""Connections to Redis: where a server is, how it greets us, what its errors mean, and scripts on one node.

A **socket** (`socket`, sync or async) moves bytes and replies, framed by hiredis. A **connection** runs scripts and
commands over sockets: `RedisNodeConnection` on one server, `cluster.RedisClusterConnection` on many, and
`client.RedisClientConnection` through a client that the caller already has. The code is the same for sync and async;
over a sync socket nothing ever suspends.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import time
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, Protocol

from effectonce.contracts import ConnectionLost
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    InvalidOption,
    MissingDriver,
    StoreUnavailable,
    UnsafeStore,
    show,
)
from effectonce.values.urls import Address


def load_driver() -> Any:
    """Import hiredis, which is needed at the first use of Redis only."""
    try:
        import hiredis
    except ImportError:
        raise MissingDriver("Redis needs a driver: pip install 'effectonce[redis]'") from None
    return hiredis


class Script:
    """One script made of a package's ``.lua`` files, and the SHA-1 that EVALSHA knows it by."""

    def __init__(self, *names: str, package: str = "effectonce.backends.redis") -> None:
        folder = resources.files(package)
        self.source = b"\n".join(folder.joinpath(f"{name}.lua").read_bytes() for name in names)
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()
        #: EVALSHA with one key and one argument, each after its length, to be filled in by ``%``: half the time that
        #: hiredis takes to pack so short a command.
        self.single_item_command = (
            b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + self.sha + b"\r\n$1\r\n1\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
        )


class RedisEndpoint:
    """Where a server is, our user there, and the timeouts. Its ``repr`` holds no password."""

    def __init__(
        self,
        *,
        host: str = "localhost",
        port: int = 6379,
        path: str | None = None,
        db: int = 0,
        user: str | None = None,
        password: str | None = None,
        provider: Callable[[], Sequence[str]] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 5.0,
        connect_timeout: float = 5.0,
        shown: str = "",
        loses: str = "",
    ) -> None:
        self.host, self.port, self.path, self.db = host, port, path, db
        self.user, self.password, self.tls = user or None, password, tls
        self.provider = provider  # gives a password, or a user and a password, for one connection
        self.logs_in = password is not None or provider is not None
        self.timeout, self.connect_timeout = timeout, connect_timeout
        self.shown = shown or f"redis://{path or f'{host}:{port}'}/{db}"
        self.loses = loses or _RECORDS  # what an eviction would delete, for the error

    def at(self, host: str, port: int) -> RedisEndpoint:
        """Another node of the same cluster."""
        return RedisEndpoint(
            host=host,
            port=port,
            user=self.user,
            password=self.password,
            provider=self.provider,
            tls=self.tls,
            timeout=self.timeout,
            connect_timeout=self.connect_timeout,
            shown=f"{self.shown} (node {host}:{port})",
            loses=self.loses,
        )

    def __repr__(self) -> str:
        return f"RedisEndpoint({self.shown!r})"

    def greeting_commands(self) -> list[tuple[str, ...]]:
        """The commands that are sent first on every connection."""
        commands: list[tuple[str, ...]] = [("CLIENT", "SETNAME", "effectonce"), *EVICTION]
        if self.db:
            commands.insert(0, ("SELECT", str(self.db)))
        if self.provider is not None:
            try:
                *users, password = self.provider()
                commands.insert(0, ("AUTH", *filter(None, users), password))
            except Exception as error:
                raise StoreUnavailable(
                    f"the credential provider of {self.shown} failed ({type(error).__name__}); see its error"
                ) from error
        elif self.password is not None:
            commands.insert(0, ("AUTH", *((self.user,) if self.user else ()), self.password))
        return commands

    @property
    def greeting_count(self) -> int:
        """How many commands those are. They are not kept, since the password is among them."""
        return 1 + len(EVICTION) + bool(self.db) + self.logs_in

    def check_greeting(self, replies: Sequence[Any]) -> None:
        """Raise where the server refused the greeting, or evicts: after a failover it may not be the server that
        was checked. Its message may repeat the password, so it is not shown."""
        remaining = list(replies)
        login = remaining.pop(0) if self.logs_in else None
        select = remaining.pop(0) if self.db else None
        for reply in (login, select):  # a refused CLIENT SETNAME does not matter: some services forbid it
            if isinstance(reply, ReplyError) and reply.code in _UNAVAILABLE:
                raise translate(reply, self.shown)
        if isinstance(login, ReplyError):
            raise ConfigurationError(
                f"{self.shown} refused the user or the password ({login.code}); correct them in the URL, "
                "percent-encoded"
            )
        if isinstance(select, ReplyError):
            if select.code in ("NOAUTH", "NOPERM"):
                raise translate(select, self.shown)
            raise ConfigurationError(f"{self.shown} has no database {self.db} ({select.code}); name another in the URL")
        for reply in remaining[1:]:
            refuse_eviction(reply, self.shown, self.loses)


def endpoint_at(
    address: Address, *, secure: bool, path: str | None = None, database: str | None = None, loses: str = ""
) -> RedisEndpoint:
    """The endpoint of ``address``, from which it takes the options that every Redis has. Without ``database``, its
    number is the path."""
    timeout, connect_timeout = address.seconds("timeout", 5.0), address.seconds("connect_timeout", 5.0)
    tls = address.tls(secure)
    number = address.path.strip("/") or "0" if database is None else database
    if not (number.isascii() and number.isdigit()):
        raise InvalidOption(f"the path of {address} is the number of a database, as in redis://localhost/0")
    return RedisEndpoint(
        host=address.host or "localhost",
        port=address.port or 6379,
        path=path,
        db=int(number),
        user=address.user,
        password=address.password,
        tls=tls,
        timeout=timeout,
        connect_timeout=connect_timeout,
        shown=str(address),
        loses=loses,
    )


#: The commands that tell the eviction policy; some services forbid the first.
EVICTION = (("CONFIG", "GET", "maxmemory-policy"), ("INFO", "memory"))
_POLICY = re.compile(r"noeviction|(?:allkeys|volatile)-[a-z]+")


_RECORDS = "records, and their operations would run again"


def refuse_eviction(reply: Any, shown: str, loses: str = _RECORDS) -> bool:
    """`UnsafeStore` where a reply to one of `EVICTION` names a policy that evicts. Returns whether it names any."""
    # A client's callbacks may have made a dict of the reply: the policy is in its text in any case.
    policy = None if isinstance(reply, ReplyError) else _POLICY.search(str(reply))
    if policy and policy[0] != "noeviction":
        raise evicting_store(policy[0], shown, loses)
    return policy is not None


def evicting_store(policy: str, shown: str, loses: str = _RECORDS) -> UnsafeStore:
    return UnsafeStore(
        f"{shown} has maxmemory-policy {policy}: it may evict {loses}. Run "
        "CONFIG SET maxmemory-policy noeviction (and write it into redis.conf), or give effectonce a Redis of its own"
    )


# Errors


class ReplyError(Exception):
    """An error reply of the server; ``code`` is its first word."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


class NotRedis(ConnectionError):
    """The bytes received are not the protocol of Redis."""


def new_reader() -> Any:
    return load_driver().Reader(protocolError=NotRedis, replyError=ReplyError)


_UNAVAILABLE = {
    "LOADING": "is loading its data from disk",
    "BUSY": "is blocked by a long-running script (SCRIPT KILL ends it)",
    "MASTERDOWN": "is a replica that has lost its primary",
    "CLUSTERDOWN": "is part of a cluster that is down",
    "TRYAGAIN": "is moving this key to another node",
    "OOM": "is out of memory: raise maxmemory, or purge",
    "MISCONF": "refuses writes because it cannot save to disk",
    "NOREPLICAS": "refuses writes because too few replicas are connected",
}


def translate(error: ReplyError, shown: str) -> Exception:
    """Our exception for a server's error. `ConnectionLost`: drop the connection and repeat."""
    code, text = error.code, show(error, 400)  # the name of a key may be long
    translated: Exception
    if code in _UNAVAILABLE:
        translated = StoreUnavailable(f"{shown} {_UNAVAILABLE[code]} ({text})")
    elif code == "READONLY":
        translated = ConnectionLost(
            f"{shown} is a read-only replica, perhaps since a failover; claims need the primary"
        )
    elif code in ("MOVED", "ASK", "CROSSSLOT"):
        translated = ConfigurationError(f"{shown} is a Redis Cluster; write its URL with redis+cluster://")
    elif code == "NOAUTH":
        translated = ConfigurationError(
            f"{shown} asks for a password; write it into the URL, redis://user:password@host"
        )
    elif code == "WRONGPASS":
        translated = ConfigurationError(
            f"{shown} refused the user or the password (WRONGPASS); correct them in the URL, percent-encoded"
        )
    elif code == "NOPERM":
        translated = ConfigurationError(
            f"{shown} does not let this user do that ({text}); it needs: ACL SETUSER … ~eo:* &eo:* "
            "+@hash +@sortedset +@keyspace +@scripting +@pubsub +@connection +time +info +config|get, and for queues "
            "+@stream +@list +@transaction"
        )
    elif code in ("WRONGTYPE", "CORRUPT"):
        translated = CorruptRecord(
            f"a record in {shown} is not what effectonce wrote ({text}); look at it with HGETALL, then DEL it"
        )
    elif "unknown command" in text:
        translated = ConfigurationError(
            f"{shown} lacks a command that effectonce needs: {text}; use Redis >= 6 or Valkey"
        )
    else:
        translated = StoreUnavailable(f"{shown} answered with an error: {text}")
    translated.__cause__ = error
    return translated


def connect_error(endpoint: RedisEndpoint, error: BaseException) -> StoreUnavailable:
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"cannot connect to {endpoint.shown} within {endpoint.connect_timeout:g} s")
    return StoreUnavailable(f"cannot connect to {endpoint.shown}: {show(error) or type(error).__name__}")


def timeout_error(endpoint: RedisEndpoint) -> StoreUnavailable:
    return StoreUnavailable(f"{endpoint.shown} did not answer within {endpoint.timeout:g} s")


def connection_lost(endpoint: RedisEndpoint, error: BaseException | None) -> ConnectionLost:
    why = show(error) if error else "closed by the server"
    return ConnectionLost(f"the connection to {endpoint.shown} broke ({why})")


# Sockets and connections


class RedisSocket(Protocol):
    """One socket, sync or async. `send` connects it where needed, and any failure drops it."""

    endpoint: RedisEndpoint

    async def ask(self, command: bytes) -> Any:
        """`send` and `receive` of one command and its one reply, which may be a `ReplyError`."""
        ...

    async def send(self, data: bytes) -> None: ...

    async def receive(self, count: int, within: float | None = None) -> list[Any]:
        """Exactly ``count`` replies, within the endpoint's timeout by default. Error replies are `ReplyError` objects,
        not raised."""
        ...

    async def receive_pushed(self, timeout: float) -> list[Any]:
        """The replies that the server has pushed, waiting up to ``timeout`` for the first; none is not an error."""
        ...

    async def pause(self, seconds: float) -> None: ...

    def drop(self) -> None:
        """Close without sending anything; the next `send` connects again."""
        ...


class RedisConnection(Protocol):
    """What a port needs of Redis: one server, a cluster, or a client of the caller's. For one caller at a time."""

    shown: str

    async def batch(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        """Run ``script`` for each item, atomically at the node of its key. Returns one element per item; that of a
        failed item is a `ReplyError` or one of our exceptions."""
        ...

    async def batch_at(self, node: str, script: Script, args: Sequence[bytes]) -> Sequence[Any]:
        """Run ``script`` for items without a key, on one node."""
        ...

    async def nodes(self) -> Sequence[str]:
        """The names of the primaries, sorted; [""] where there is no cluster."""
        ...

    async def command(self, node: str, *words: str | bytes) -> Any:
        """One command on one node; an error is raised as `ReplyError`."""
        ...

    async def listen(self, channel: str, timeout: float) -> Sequence[bytes]:
        """The messages published since the last call, without empty ones. The first call subscribes."""
        ...

    async def drop(self) -> None:
        """Drop all sockets; the next use connects again."""
        ...

    async def close(self) -> None: ...


async def ask(connection: RedisSocket, *words: str | bytes | int) -> Any:
    """One command, one reply, which may be a `ReplyError`."""
    return await connection.ask(load_driver().pack_command(words))


class RedisNodeConnection:
    """See `RedisConnection`. One server, on one socket."""

    def __init__(self, connect: Callable[[RedisEndpoint], RedisSocket], endpoint: RedisEndpoint) -> None:
        self.shown = endpoint.shown
        self._connection = connect(endpoint)
        self._subscription = Subscription(connect(endpoint))
        self._pack = load_driver().pack_command

    async def batch(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        connection = self._connection
        if len(keys) == len(args) == 1:
            (key,), (arg,) = keys, args
            command: bytes = script.single_item_command % (len(key), key, len(arg), arg)
        else:
            command = self._pack((b"EVALSHA", script.sha, len(keys), *keys, *args))
        reply = await connection.ask(command)
        if type(reply) is list:
            return reply
        if reply.code == "NOSCRIPT":
            await connection.send(self._pack((b"SCRIPT", b"LOAD", script.source)) + command)
            loaded, reply = await connection.receive(2)
            if type(reply) is list:
                return reply
            if isinstance(loaded, ReplyError):
                reply = loaded
        error = translate(reply, self.shown)
        if isinstance(error, ConnectionLost):
            connection.drop()
        raise error

    async def batch_at(self, node: str, script: Script, args: Sequence[bytes]) -> Sequence[Any]:
        return await self.batch(script, (), args)

    async def nodes(self) -> Sequence[str]:
        return ("",)

    async def command(self, node: str, *words: str | bytes) -> Any:
        reply = await ask(self._connection, *words)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    async def listen(self, channel: str, timeout: float) -> Sequence[bytes]:
        return await self._subscription.listen(channel, timeout)

    async def drop(self) -> None:
        self._connection.drop()

    async def close(self) -> None:
        self._connection.drop()
        self._subscription.drop()


class Subscription:
    """A subscribed channel on a socket of its own. A silent one is pinged, to notice a dead peer."""

    def __init__(self, connection: RedisSocket) -> None:
        self._connection = connection
        self._subscribed = False
        self._pinged_at: float | None = None

    async def listen(self, channel: str, timeout: float) -> list[bytes]:
        connection = self._connection
        try:
            if not self._subscribed:
                connection.drop()
                reply = await ask(connection, "SUBSCRIBE", channel)
                if isinstance(reply, ReplyError):
                    raise translate(reply, connection.endpoint.shown)
                self._subscribed, self._pinged_at = True, None
            deadline = time.monotonic() + timeout
            while True:
                remaining = deadline - time.monotonic()
                pushed = await connection.receive_pushed(max(remaining, 0.0))
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
            await self._connection.send(load_driver().pack_command(("PING",)))
        elif silent and time.monotonic() - self._pinged_at > self._connection.endpoint.timeout:
            raise timeout_error(self._connection.endpoint)

    def drop(self) -> None:
        self._subscribed = False
        self._connection.drop()
