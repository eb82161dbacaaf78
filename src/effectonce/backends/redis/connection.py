"""Redis by its own wire: one socket, hiredis for the framing, and every server error translated here.

A **connection** (`redis_socket`, in both colours) moves bytes and replies. A **wire** runs scripts and
commands over connections: `NodeWire` on one server, `redis_cluster.ClusterWire` on many, and
`redis_client.ClientWire` through a client that the caller already has. Wires have one shape in both colours;
over a sync connection nothing ever suspends.
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


def driver() -> Any:
    """hiredis, imported when first needed."""
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
        #: Its EVALSHA with one key and one argument, each behind its length: hiredis is made for longer ones.
        self.lone = b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + self.sha + b"\r\n$1\r\n1\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"


class Endpoint:
    """Where a server is, who we are there, and how long we wait. Its ``repr`` holds no password."""

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
        self.provider = provider  # of a password, or a user and one, that are good for one connection
        self.logs_in = password is not None or provider is not None
        self.timeout, self.connect_timeout = timeout, connect_timeout
        self.shown = shown or f"redis://{path or f'{host}:{port}'}/{db}"
        self.loses = loses or _RECORDS  # what an eviction would do

    def at(self, host: str, port: int) -> Endpoint:
        """Another node of the same cluster."""
        return Endpoint(
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
        return f"Endpoint({self.shown!r})"

    def greeting(self) -> list[tuple[str, ...]]:
        """What is sent first on every connection."""
        commands: list[tuple[str, ...]] = [("CLIENT", "SETNAME", "effectonce"), *EVICTION]
        if self.db:
            commands.insert(0, ("SELECT", str(self.db)))
        if self.provider is not None:
            try:
                *users, password = self.provider()
                commands.insert(0, ("AUTH", *filter(None, users), password))
            except Exception as error:
                raise StoreUnavailable(
                    f"the credential provider of {self.shown} gave none ({type(error).__name__})"
                ) from error
        elif self.password is not None:
            commands.insert(0, ("AUTH", *((self.user,) if self.user else ()), self.password))
        return commands

    @property
    def greetings(self) -> int:
        """How many commands that is. They are never kept: the password is among them."""
        return 1 + len(EVICTION) + bool(self.db) + self.logs_in

    def greeted(self, replies: Sequence[Any]) -> None:
        """Raise where the server refused the greeting, or evicts: after a failover it may be another than the one
        that was checked. Its own words may repeat the password: never shown."""
        waiting = list(replies)
        login = waiting.pop(0) if self.logs_in else None
        choice = waiting.pop(0) if self.db else None
        for reply in (login, choice):  # what it says to CLIENT does not matter: some services forbid it
            if isinstance(reply, ReplyError) and reply.code in _BUSY:
                raise translate(reply, self.shown)
        if isinstance(login, ReplyError):
            raise ConfigurationError(
                f"{self.shown} refused the user or the password ({login.code}); correct them in the URL, "
                "percent-encoded"
            )
        if isinstance(choice, ReplyError):
            if choice.code in ("NOAUTH", "NOPERM"):
                raise translate(choice, self.shown)
            raise ConfigurationError(f"{self.shown} has no database {self.db} ({choice.code})")
        for reply in waiting[1:]:
            refuse_eviction(reply, self.shown, self.loses)


def endpoint_at(
    address: Address, *, secure: bool, path: str | None = None, database: str | None = None, loses: str = ""
) -> Endpoint:
    """Where ``address`` leads; takes the options that every Redis has. ``database`` is in the path unless given."""
    timeout, connect_timeout = address.seconds("timeout", 5.0), address.seconds("connect_timeout", 5.0)
    tls = address.tls(secure)
    number = address.path.strip("/") or "0" if database is None else database
    if not (number.isascii() and number.isdigit()):
        raise InvalidOption(f"the path of {address} is the number of a database, as in redis://localhost/0")
    return Endpoint(
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


#: What tells the eviction policy; some services forbid the first.
EVICTION = (("CONFIG", "GET", "maxmemory-policy"), ("INFO", "memory"))
_POLICY = re.compile(r"noeviction|(?:allkeys|volatile)-[a-z]+")


_RECORDS = "records, and their operations would run again"


def refuse_eviction(reply: Any, shown: str, loses: str = _RECORDS) -> bool:
    """`UnsafeStore` where a reply to one of `EVICTION` names a policy that evicts; whether it names one at all."""
    # A client's callbacks may have made a dict of it: the policy is in there whatever the shape.
    found = None if isinstance(reply, ReplyError) else _POLICY.search(str(reply))
    if found and found[0] != "noeviction":
        raise unsafe(found[0], shown, loses)
    return found is not None


def unsafe(policy: str, shown: str, loses: str = _RECORDS) -> UnsafeStore:
    return UnsafeStore(
        f"{shown} has maxmemory-policy {policy}: it may evict {loses}. Run "
        "CONFIG SET maxmemory-policy noeviction (and write it into redis.conf), or give effectonce a Redis of its own"
    )


# Errors


class ReplyError(Exception):
    """An error as the server said it; ``code`` is its first word."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


class NotRedis(ConnectionError):
    """What came in is not the protocol of a Redis."""


def new_reader() -> Any:
    return driver().Reader(protocolError=NotRedis, replyError=ReplyError)


_BUSY = {
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
    """Our exception for a server's error. A `ConnectionLost` means: drop the connection, ask again."""
    code, text = error.code, show(error, 400)  # the name of a key may be long
    found: Exception
    if code in _BUSY:
        found = StoreUnavailable(f"{shown} {_BUSY[code]} ({text})")
    elif code == "READONLY":
        found = ConnectionLost(
            f"{shown} is a read-only replica, perhaps since a failover; claims go to the primary only"
        )
    elif code in ("MOVED", "ASK", "CROSSSLOT"):
        found = ConfigurationError(f"{shown} is a Redis Cluster; write its URL with redis+cluster://")
    elif code == "NOAUTH":
        found = ConfigurationError(f"{shown} asks for a password; write it into the URL, redis://user:password@host")
    elif code == "WRONGPASS":
        found = ConfigurationError(f"{shown} refused the user or the password (WRONGPASS)")
    elif code == "NOPERM":
        found = ConfigurationError(
            f"{shown} does not let this user do that ({text}); it needs: ACL SETUSER … ~eo:* &eo:* "
            "+@hash +@sortedset +@keyspace +@scripting +@pubsub +@connection +time +info +config|get, and for queues "
            "+@stream +@list +@transaction"
        )
    elif code in ("WRONGTYPE", "CORRUPT"):
        found = CorruptRecord(
            f"a record in {shown} is not what effectonce wrote ({text}); look at it with HGETALL, then DEL it"
        )
    elif "unknown command" in text:
        found = ConfigurationError(f"{shown} lacks a command that effectonce needs: {text}")
    else:
        found = StoreUnavailable(f"{shown} answered with an error: {text}")
    found.__cause__ = error
    return found


def cannot_connect(endpoint: Endpoint, error: BaseException) -> StoreUnavailable:
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"cannot connect to {endpoint.shown} within {endpoint.connect_timeout:g} s")
    return StoreUnavailable(f"cannot connect to {endpoint.shown}: {show(error) or type(error).__name__}")


def no_answer(endpoint: Endpoint) -> StoreUnavailable:
    return StoreUnavailable(f"{endpoint.shown} did not answer within {endpoint.timeout:g} s")


def broken(endpoint: Endpoint, error: BaseException | None) -> ConnectionLost:
    why = show(error) if error else "closed by the server"
    return ConnectionLost(f"the connection to {endpoint.shown} broke ({why})")


# Connections and wires


class Connection(Protocol):
    """One socket. It connects in `send` where it is not connected, and is dropped by any failure."""

    endpoint: Endpoint

    async def ask(self, command: bytes) -> Any:
        """`send` and `receive` of one command and its one reply, which may be a `ReplyError`."""
        ...

    async def send(self, data: bytes) -> None: ...

    async def receive(self, count: int, within: float | None = None) -> list[Any]:
        """Exactly ``count`` replies, within the endpoint's timeout unless told; errors among them are `ReplyError`
        objects."""
        ...

    async def arrived(self, timeout: float) -> list[Any]:
        """Whatever has come, waiting up to ``timeout`` for a first; nothing is not an error."""
        ...

    async def pause(self, seconds: float) -> None: ...

    def drop(self) -> None:
        """Close without a word; the next `send` connects again."""
        ...


class Wire(Protocol):
    """What a port needs of Redis, whatever is behind it. Used by one caller at a time."""

    shown: str

    async def batch(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        """One element per item, each atomic at the node of its key; a failed item is a `ReplyError` or one
        of our exceptions."""
        ...

    async def batch_at(self, node: str, script: Script, args: Sequence[bytes]) -> Sequence[Any]:
        """The same for items without a key, on one node."""
        ...

    async def nodes(self) -> Sequence[str]:
        """The primaries, sorted; one of no name where there is no cluster."""
        ...

    async def command(self, node: str, *words: str | bytes) -> Any:
        """One command on one node; an error is raised as `ReplyError`."""
        ...

    async def listen(self, channel: str, timeout: float) -> Sequence[bytes]:
        """What was published since the last call, but for empty messages; the first call subscribes."""
        ...

    async def drop(self) -> None:
        """Forget what is connected; the next use connects again."""
        ...

    async def close(self) -> None: ...


async def ask(connection: Connection, *words: str | bytes | int) -> Any:
    """One command, one reply, which may be a `ReplyError`."""
    return await connection.ask(driver().pack_command(words))


class NodeWire:
    """One server."""

    def __init__(self, connect: Callable[[Endpoint], Connection], endpoint: Endpoint) -> None:
        self.shown = endpoint.shown
        self._connection = connect(endpoint)
        self._subscription = Subscription(connect(endpoint))
        self._pack = driver().pack_command

    async def batch(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        connection = self._connection
        if len(keys) == len(args) == 1:
            (key,), (arg,) = keys, args
            command: bytes = script.lone % (len(key), key, len(arg), arg)
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
    """A channel on a connection of its own. A silent one is pinged, so that a dead peer is noticed."""

    def __init__(self, connection: Connection) -> None:
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
                left = deadline - time.monotonic()
                arrived = await connection.arrived(max(left, 0.0))
                if arrived:
                    self._pinged_at = None
                    messages = [m[2] for m in arrived if isinstance(m, list) and m[0] == b"message" and m[2]]
                    if messages:
                        return messages
                if left <= 0:
                    await self._ping(silent=not arrived)
                    return []
        except BaseException:
            self.drop()
            raise

    async def _ping(self, *, silent: bool) -> None:
        if self._pinged_at is None:
            self._pinged_at = time.monotonic()
            await self._connection.send(driver().pack_command(("PING",)))
        elif silent and time.monotonic() - self._pinged_at > self._connection.endpoint.timeout:
            raise no_answer(self._connection.endpoint)

    def drop(self) -> None:
        self._subscribed = False
        self._connection.drop()
