"""The Redis store: it makes connections and ports from a ``redis://`` URL, or from a client of the caller's.

It serves Redis >= 6, Valkey and Redis Cluster. `port` has the operations, `record_format` the keys and the packed
items, ``records.lua`` and ``indexes.lua`` the scripts.
"""

from __future__ import annotations

from typing import Any

from effectonce.backends.common.drivers import require_driver
from effectonce.contracts import Capabilities, Port
from effectonce.errors import InvalidOption
from effectonce.values.urls import Address

from .client_connection import RedisClientConnection, is_async, is_cluster, read_endpoint
from .cluster import RedisClusterConnection
from .connection import RedisConnection, RedisNodeConnection
from .endpoint import RedisEndpoint, parse_endpoint
from .port import RedisPort
from .record_format import Layout
from .socket import AsyncRedisSocket, SyncRedisSocket

_SocketClass = type[SyncRedisSocket] | type[AsyncRedisSocket]


class RedisStoreBackend:
    """Redis at ``redis://``, or ``rediss://`` with TLS; ``valkey://`` and ``valkeys://`` are the same.

    ``unix:///path?db=0`` is a Unix socket (``redis+unix://``, too), ``redis+cluster://host:7000,host:7001`` a cluster,
    and ``redis+sentinel://host:26379,host:26379/service/0`` the primary that the sentinels name.

    Options: ``namespace`` (default ``eo``), ``timeout`` and ``connect_timeout`` (5 s each); of a cluster also ``nodes``
    (``host:port,host:port``, asked where the first does not answer); of sentinels ``sentinel_user`` and
    ``sentinel_password``; and those for TLS: ``tls``, ``ca_file``, ``cert_file``, ``key_file``, ``verify``,
    ``server_name``.
    """

    def __init__(self, address: Address) -> None:
        namespace = address.take("namespace", str, "eo")
        self._endpoint = parse_endpoint(address)
        address.refuse_unknown_options()
        require_driver("Redis", "redis", "hiredis")
        self._set_up(str(address), namespace, mixed_batches=True)

    def _set_up(self, display_name: str, namespace: str, *, mixed_batches: bool) -> None:
        self._display_name = display_name
        self.layout = Layout(namespace)
        # Whether a port of this process has checked the server, with no connection lost since. After a failover it may
        # be another server, with other settings: so ports reset this when a connection breaks.
        self.verified = False
        # A worker with the default concurrency of 100 sends its completions and its next claims in one batch of 256.
        self.capabilities = Capabilities(
            name="redis", batch=256, mixed_batches=mixed_batches, notifies=True, expires_by_itself=True
        )

    def sync_port(self) -> Port:
        return RedisPort(self, self._connect(SyncRedisSocket))

    def async_port(self) -> Port:
        return RedisPort(self, self._connect(AsyncRedisSocket))

    def _connect(self, socket_class: _SocketClass) -> RedisConnection:
        return _connect_to(self._endpoint, socket_class)

    def schema_sql(self) -> str:
        return ""

    def __repr__(self) -> str:
        return self._display_name


class RedisClientStoreBackend(RedisStoreBackend):
    """Over a client of redis-py or valkey-py: `Redis`, `RedisCluster`, or their asyncio forms.

    A sync client serves sync code, an async one async code, through ``client.execute_command``; its owner closes it.
    For the other kind of code we open connections of our own to the same server: heartbeats run on a thread, also
    beside async clients. Some clients do not tell which server that is (a custom pool). Then a sync client
    raises `SyncAsyncMismatch` when async code uses the store; an async one is refused here, since its leases could not
    be renewed.
    """

    # Not `super().__init__`: there is no address, so no endpoint and no seeds. `_connect` reads them from the client.
    def __init__(self, client: Any, namespace: str = "eo") -> None:
        if not callable(getattr(client, "execute_command", None)):
            raise InvalidOption(
                f"{type(client).__name__} is not a Redis client: it has no execute_command; pass one of redis-py or "
                "valkey-py"
            )
        require_driver("Redis", "redis", "hiredis")
        if is_async(client):
            read_endpoint(client)
        self._client = client
        kind = type(client)
        # Through a cluster client each operation of a batch is a round trip of its own.
        self._set_up(
            f"{kind.__module__.partition('.')[0]}.{kind.__name__}", namespace, mixed_batches=not is_cluster(client)
        )

    def _connect(self, socket_class: _SocketClass) -> RedisConnection:
        client = self._client
        if is_async(client) == (socket_class is AsyncRedisSocket):
            return RedisClientConnection(client, self._display_name)
        return _connect_to(read_endpoint(client), socket_class)


def _connect_to(endpoint: RedisEndpoint, socket_class: _SocketClass) -> RedisConnection:
    return (RedisClusterConnection if endpoint.cluster else RedisNodeConnection)(socket_class, endpoint)
