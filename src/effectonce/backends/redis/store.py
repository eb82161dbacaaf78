"""The Redis store: what a ``redis://`` URL or a client of the caller's says, as connections and ports.

It serves Redis >= 6, Valkey and Redis Cluster. `port` has the operations, `record_format` the keys and the packed
items, ``records.lua`` the scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from effectonce.contracts import Capabilities, Port
from effectonce.errors import InvalidOption
from effectonce.values.urls import Address, flag

from .client import RedisClientConnection, endpoint_of, is_async, is_cluster
from .cluster import Node, RedisClusterConnection, parse_nodes
from .connection import RedisConnection, RedisEndpoint, RedisNodeConnection, RedisSocket, endpoint_at, load_driver
from .port import RedisPort
from .record_format import Layout
from .socket import AsyncRedisSocket, SyncRedisSocket


class RedisStoreBackend:
    """Redis at ``redis://``, ``rediss://`` (TLS), ``redis+cluster://`` or ``redis+unix://``.

    Options: ``namespace`` (default ``eo``), ``timeout`` and ``connect_timeout`` (5 s each), ``ca_file``,
    ``cert_file`` and ``key_file`` for TLS; of a cluster also ``tls`` and ``nodes`` (``host:port,host:port``, asked
    where the first does not answer); of a Unix socket ``db``.
    """

    def __init__(self, address: Address) -> None:
        kind = address.scheme
        namespace = address.take("namespace", str, "eo")
        database = address.take("db", str, "0") if kind == "redis+unix" else None
        secure = kind == "rediss"
        self._seeds: list[Node] = []
        no_nodes: list[Node] = []
        if kind == "redis+cluster":
            secure = address.take("tls", flag, False)
            self._seeds = [
                (address.host or "localhost", address.port or 6379),
                *address.take("nodes", parse_nodes, no_nodes),
            ]
        path = address.path if kind == "redis+unix" else None
        endpoint = endpoint_at(address, secure=secure, path=path, database=database)
        address.done()
        if kind == "redis+cluster" and endpoint.db:
            raise InvalidOption(f"a Redis Cluster has only database 0, got {address}")
        load_driver()
        self._client: Any = None
        self._endpoint: RedisEndpoint | None = endpoint
        self._configure(namespace, str(address))

    @classmethod
    def from_client(cls, client: Any, namespace: str = "eo") -> RedisStoreBackend:
        """Over a client of redis-py or valkey-py: `Redis`, `RedisCluster`, or their asyncio forms.

        A sync client serves sync code, an async one async code, through ``client.execute_command``; its owner closes
        it. For the other kind of code we open connections of our own to the same server: heartbeats run on a thread,
        also beside async clients. Some clients do not say which server that is (Sentinel, a pool of one's own): then a
        sync client raises `SyncAsyncMismatch` when async code asks, and an async one is refused here, since its leases
        could not be renewed.
        """
        if not callable(getattr(client, "execute_command", None)):
            raise InvalidOption(
                f"{type(client).__name__} is not a Redis client: it has no execute_command; pass one of redis-py or "
                "valkey-py"
            )
        load_driver()
        if is_async(client):
            endpoint_of(client)
        backend = cls.__new__(cls)
        backend._client = client
        backend._endpoint = None
        backend._seeds = []
        kind = type(client)
        backend._configure(namespace, f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
        return backend

    def _configure(self, namespace: str, shown: str) -> None:
        self.shown = shown
        self.layout = Layout(namespace)
        # Whether a port of this process has checked the server, and no connection was lost since.
        self.verified = False
        # Through the caller's cluster client each operation of a batch is a round trip of its own.
        mixes = self._client is None or not is_cluster(self._client)
        self.capabilities = Capabilities(name="redis", lanes=3, mixes=mixes, notifies=True, expires_by_itself=True)

    def sync_port(self) -> Port:
        return RedisPort(self, self._connection("sync"))

    def async_port(self) -> Port:
        return RedisPort(self, self._connection("async"))

    def _connection(self, mode: Literal["sync", "async"]) -> RedisConnection:
        client, endpoint, seeds = self._client, self._endpoint, self._seeds
        if client is not None:
            if is_async(client) == (mode == "async"):
                return RedisClientConnection(client, self.shown, self.layout.companions)
            endpoint = endpoint_of(client)
            seeds = [(endpoint.host, endpoint.port)] if is_cluster(client) else []
        assert endpoint is not None
        connect: Callable[[RedisEndpoint], RedisSocket] = SyncRedisSocket if mode == "sync" else AsyncRedisSocket
        if seeds:
            return RedisClusterConnection(connect, endpoint, seeds, self.layout.companions)
        return RedisNodeConnection(connect, endpoint)

    def schema_sql(self) -> str:
        return ""

    def __repr__(self) -> str:
        return self.shown
