"""A Redis server: its address, its login, and the commands that are sent first on every connection (the greeting).

The greeting also reads the server's eviction policy, since a store or a broker on a server that evicts keys would lose
records or queues.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from effectonce.backends.common.tls import take_tls
from effectonce.errors import ConfigurationError, InvalidOption, MissingDriver, StoreUnavailable
from effectonce.values.urls import Address, HostPort

from .errors import UNAVAILABLE_CODES, RedisErrors, ReplyError

#: The commands whose replies name the eviction policy. Some services forbid the first.
EVICTION_COMMANDS: Final = (("CONFIG", "GET", "maxmemory-policy"), ("INFO", "memory"))
_POLICY = re.compile(r"noeviction|(?:allkeys|volatile)-[a-z]+")


def load_driver() -> Any:
    """Import hiredis. This is called when Redis is first used."""
    try:
        import hiredis
    except ImportError as error:  # `require_driver` found it when the store was made, but it cannot be imported
        raise MissingDriver(f"Redis needs hiredis: pip install 'effectonce[redis]' ({error})") from error
    return hiredis


class Node(NamedTuple):
    """The address of one server of several."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_node(text: str, default_port: int = 6379) -> Node:
    """Parse ``host:port``, ``host`` or ``[IPv6]:port``. `ValueError` where the port is not a number."""
    place = HostPort.parse(text)
    return Node(place.host or "localhost", place.port or default_port)


def parse_nodes(text: str) -> list[Node]:
    """Parse a list of nodes, as in ``host:port,host``."""
    return list(map(parse_node, text.split(",")))


class RedisEndpoint(Struct, kw_only=True):
    """The address of a server, the login, and the timeouts in seconds. Its ``repr`` holds no password.

    With ``cluster`` it is a Redis Cluster, and with ``sentinels`` the server is the primary that they name: ``host``
    and ``port`` are not used then.
    """

    host: str = "localhost"
    port: int = 6379
    path: str | None = None  # of a Unix socket
    db: int = 0
    user: str | None = None
    password: str | None = None
    #: Returns the password, or the user and the password, for one connection.
    provider: Callable[[], Sequence[str]] | None = None
    tls: ssl.SSLContext | None = None
    cluster: Sequence[Node] = ()  # nodes that know the others
    sentinels: Sequence[Node] = ()  # in the order in which they are asked
    service: str = ""  # the sentinels' name for the primary
    sentinel_user: str | None = None
    sentinel_password: str | None = None
    is_sentinel: bool = False
    timeout: float = 5.0
    connect_timeout: float = 5.0
    shown: str = ""
    error_kind: type[RedisErrors] = RedisErrors

    def __post_init__(self) -> None:
        self.shown = self.shown or f"redis://{self.path or f'{self.host}:{self.port}'}/{self.db}"

    @property
    def errors(self) -> RedisErrors:
        return self.error_kind(self.shown)

    def with_address(self, host: str, port: int) -> RedisEndpoint:
        """The endpoint of one node of the cluster."""
        return replace(self, host=host, port=port, cluster=(), shown=f"{self.shown} (node {Node(host, port)})")

    def of_sentinel(self, sentinel: Node) -> RedisEndpoint:
        """The endpoint of one of the sentinels."""
        return replace(
            self,
            host=sentinel.host,
            port=sentinel.port,
            db=0,
            user=self.sentinel_user,
            password=self.sentinel_password,
            provider=None,
            sentinels=(),
            is_sentinel=True,
            shown=f"{self.shown} (sentinel {sentinel})",
        )

    def __repr__(self) -> str:
        return f"RedisEndpoint({self.shown!r})"

    def greeting_commands(self) -> list[tuple[str, ...]]:
        """The commands that are sent first on every connection."""
        commands: list[tuple[str, ...]] = [("CLIENT", "SETNAME", "effectonce")]
        if not self.is_sentinel:
            commands += EVICTION_COMMANDS
        if self.sentinels:
            commands.append(("ROLE",))
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

    def packed_greeting(self) -> bytes:
        return b"".join(map(load_driver().pack_command, self.greeting_commands()))

    @property
    def _logs_in(self) -> bool:
        return self.password is not None or self.provider is not None

    @property
    def greeting_count(self) -> int:
        """The number of `greeting_commands`. Keep it in step with them. The commands themselves are not stored, since
        the password is among them."""
        eviction_commands = 0 if self.is_sentinel else len(EVICTION_COMMANDS)
        return 1 + eviction_commands + bool(self.sentinels) + bool(self.db) + self._logs_in

    def check_greeting(self, replies: Sequence[Any]) -> None:
        """Raise where the server refused the login or the database, or evicts keys. Every connection checks that: after
        a failover it may be another server. A refusal's text may repeat the password, so it is not shown."""
        remaining = list(replies)
        login = remaining.pop(0) if self._logs_in else None
        select = remaining.pop(0) if self.db else None
        for reply in (login, select):  # a refused CLIENT SETNAME does not matter: some services forbid it
            if isinstance(reply, ReplyError) and reply.code in (*UNAVAILABLE_CODES, "NOAUTH", "NOPERM"):
                raise self.errors.translate(reply)
        if isinstance(login, ReplyError):
            raise ConfigurationError(
                f"{self.shown} refused the user or the password ({login.code}); correct them in the URL, "
                "percent-encoded"
            )
        if isinstance(select, ReplyError):
            raise ConfigurationError(f"{self.shown} has no database {self.db} ({select.code}); name another in the URL")
        role = remaining.pop() if self.sentinels else None
        if isinstance(role, list) and role[0] != b"master":  # an error: some services forbid the question
            raise self.errors.unavailable(
                f"{self.shown} names a server that is not the primary yet; a failover takes some seconds"
            )
        for reply in remaining[1:]:
            refuse_eviction(reply, self.errors)


def parse_endpoint(address: Address, error_kind: type[RedisErrors] = RedisErrors) -> RedisEndpoint:
    """Read the endpoint from ``address``, with the options that every kind of Redis has."""
    timeout, connect_timeout = address.seconds("timeout", 5.0), address.seconds("connect_timeout", 5.0)
    tls = take_tls(address, by_scheme=address.scheme in ("rediss", "valkeys"))
    path, database = None, address.path.strip("/") or "0"
    if address.scheme in ("unix", "redis+unix"):
        path, database = address.path, address.take("db", str, "0")
    sentinels: Sequence[Node] = ()
    sentinel_user = sentinel_password = None
    service = ""
    if address.scheme == "redis+sentinel":
        sentinels = [Node(place.host or "localhost", place.port or 26379) for place in address.hosts]
        service, _, database = address.path.strip("/").partition("/")
        database = database or "0"
        if not service:
            raise InvalidOption(f"{address} names no service; write redis+sentinel://host:26379,host:26379/service/0")
        sentinel_user = address.take("sentinel_user", str, "") or None
        sentinel_password = address.take("sentinel_password", str, "") or None
    cluster: Sequence[Node] = ()
    if address.scheme == "redis+cluster":
        no_nodes: list[Node] = []
        cluster = [Node(place.host or "localhost", place.port or 6379) for place in address.hosts]
        cluster += address.take("nodes", parse_nodes, no_nodes)
    is_one_server = not (sentinels or cluster)
    password_provider = address.take_password_provider()
    if not (database.isascii() and database.isdigit()):
        raise InvalidOption(f"the path of {address} is the number of a database, as in redis://localhost/0")
    if cluster and int(database):
        raise InvalidOption(f"a Redis Cluster has only database 0, got {address}")
    return RedisEndpoint(
        host=address.host or "localhost" if is_one_server else "",
        port=address.port or 6379 if is_one_server else 0,
        path=path,
        db=int(database),
        user=address.user,
        password=address.password,
        provider=None if password_provider is None else lambda: (address.user or "", password_provider()),
        cluster=cluster,
        sentinels=sentinels,
        service=service,
        sentinel_user=sentinel_user,
        sentinel_password=sentinel_password,
        tls=tls.make_context(str(address)) if tls else None,
        timeout=timeout,
        connect_timeout=connect_timeout,
        shown=str(address),
        error_kind=error_kind,
    )


def refuse_eviction(reply: Any, errors: RedisErrors) -> bool:
    """Raise `UnsafeStore` where ``reply``, to one of `EVICTION_COMMANDS`, names a policy that evicts. Returns whether
    it names a policy at all."""
    # A client's callbacks may have made a dict of the reply: its text names the policy in any case.
    policy = None if isinstance(reply, ReplyError) else _POLICY.search(str(reply))
    if policy and policy[0] != "noeviction":
        raise errors.eviction_error(policy[0])
    return policy is not None
