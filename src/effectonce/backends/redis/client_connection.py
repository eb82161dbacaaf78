"""A connection through a client that the caller already has: redis-py or valkey-py, sync or asyncio, cluster or not.

Everything goes through the client's ``execute_command``; its owner closes it. Records travel in replies of scripts
only: those are the same whatever protocol, decoding or response callbacks the client was made with.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
import time
from collections.abc import Awaitable, Sequence
from typing import Any

from effectonce.contracts import ConnectionLost
from effectonce.errors import StoreUnavailable, SyncAsyncMismatch, show

from .connection import Script, Word, run_script
from .endpoint import Node, RedisEndpoint
from .errors import RedisErrors, ReplyError
from .record_format import index_keys

# The client libraries have classes for these errors, and cut the code word off the message.
_CODE_OF_CLASS = {
    "AskError": "ASK",
    "AuthenticationError": "WRONGPASS",
    "AuthenticationWrongNumberOfArgsError": "WRONGPASS",
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "NoScriptError": "NOSCRIPT",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}


def is_async(client: Any) -> bool:
    return inspect.iscoroutinefunction(client.execute_command)


def is_cluster(client: Any) -> bool:
    return hasattr(client, "get_primaries")


class RedisClientConnection:
    """See `connection.RedisConnection`. One class for sync and async clients: awaitable replies are awaited."""

    def __init__(self, client: Any, shown: str) -> None:
        self.errors = RedisErrors(shown)
        self._client = client
        self.is_cluster = is_cluster(client)
        self._async = is_async(client)
        self._pubsub: Any = None

    async def batch(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        if not self.is_cluster:
            return await run_script(self, "", script, keys, args)
        calls = [self._run_item(script, key, arg) for key, arg in zip(keys, args, strict=True)]
        if self._async:
            return await asyncio.gather(*calls)
        return [await call for call in calls]

    async def _run_item(self, script: Script, key: bytes, arg: bytes) -> Any:
        try:
            return (await run_script(self, "", script, [key, *index_keys(key)], [arg]))[0]
        except StoreUnavailable as error:  # only this item's node: the other nodes may answer
            return error

    async def nodes(self) -> Sequence[str]:
        if not self.is_cluster:
            return ("",)
        if self._async:
            await self._client.initialize()
        return sorted(node.name for node in self._client.get_primaries())

    async def command(self, node: str, *words: Word) -> Any:
        options: dict[str, Any] = {}
        if self.is_cluster and node:
            options["target_nodes"] = self._client.get_node(node_name=node)
        if words[0] == "EVALSHA":
            options["NEVER_DECODE"] = []  # bytes, also from a client that decodes responses
        try:
            reply = await _await_if_async(self._client.execute_command(*words, **options))
        except Exception as error:
            raise self._translate(error) from error
        if isinstance(reply, list):
            return [self._reply_error(item) if isinstance(item, Exception) else item for item in reply]
        return reply

    def _translate(self, error: Exception) -> Exception:
        names = {kind.__name__ for kind in type(error).__mro__}
        if names & _CODE_OF_CLASS.keys() or "ResponseError" in names:
            return self._reply_error(error)
        if isinstance(error, TimeoutError) or "TimeoutError" in names:
            return StoreUnavailable(f"{self.errors.shown} did not answer in time ({show(error)})")
        if isinstance(error, OSError) or "ConnectionError" in names:
            return ConnectionLost(f"the connection to {self.errors.shown} broke ({show(error)})")
        if "RedisError" in names or "ValkeyError" in names:
            return StoreUnavailable(f"{self.errors.shown} refused the call ({show(error)}); see the client's settings")
        return error

    @staticmethod
    def _reply_error(error: Exception) -> ReplyError:
        for kind in type(error).__mro__:
            code = _CODE_OF_CLASS.get(kind.__name__)
            if code is not None and not str(error).startswith(code):
                return ReplyError(f"{code} {error}")
        return ReplyError(str(error))

    async def listen(self, channel: str, timeout: float) -> Sequence[bytes]:
        deadline = time.monotonic() + timeout
        try:
            if self._pubsub is None:
                self._pubsub = self._client.pubsub()
                await _await_if_async(self._pubsub.subscribe(channel))
            while True:
                remaining = max(deadline - time.monotonic(), 0.0)
                message = await _await_if_async(
                    self._pubsub.get_message(ignore_subscribe_messages=False, timeout=remaining or 0.001)
                )
                if message is not None and message["type"] == "message" and message["data"]:
                    data = message["data"]
                    return [data if isinstance(data, bytes) else data.encode()]
                if remaining == 0.0:
                    return []
        except Exception as error:
            await self._unsubscribe()
            known = self._translate(error)
            raise self.errors.translate(known) if isinstance(known, ReplyError) else known from error

    async def _unsubscribe(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            try:
                await _await_if_async(pubsub.aclose() if self._async else pubsub.close())
            except Exception:  # it is given up in any case
                pass

    async def drop(self) -> None:
        """Do nothing: the client reconnects by itself."""

    async def close(self) -> None:
        await self._unsubscribe()


async def _await_if_async(value: Awaitable[Any] | Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def read_endpoint(client: Any) -> RedisEndpoint:
    """Read the server of a client, to open connections of the other kind: sync ones for an async client, and async ones
    for a sync client.

    Heartbeats, sweeps and wake-ups run on threads, also beside an async client. Raises `SyncAsyncMismatch` where the
    client does not tell where its server is (a custom pool).
    """
    options: dict[str, Any] = {}
    cluster: Sequence[Node] = ()
    sentinels: Sequence[dict[str, Any]] = ()
    service = ""
    try:
        if is_cluster(client):
            manager = getattr(client, "nodes_manager", None)
            options.update(getattr(manager, "connection_kwargs", None) or getattr(client, "connection_kwargs", {}))
            first = next(iter(manager.startup_nodes.values() if manager else client.get_primaries()))
            options.update(host=first.host, port=first.port)
            cluster = (Node(first.host, int(first.port)),)
            secure = "ssl" in repr(options.get("connection_class", "")).lower() or bool(options.get("ssl"))
        else:
            options.update(client.connection_pool.connection_kwargs)
            manager = getattr(client.connection_pool, "sentinel_manager", None)
            if manager is not None and client.connection_pool.is_master:
                service = client.connection_pool.service_name
                sentinels = [_options_of(sentinel) for sentinel in manager.sentinels]
            secure = "ssl" in client.connection_pool.connection_class.__name__.lower()
    except (AttributeError, StopIteration):
        options = {}
    if not ("path" in options or "host" in options or sentinels):
        raise SyncAsyncMismatch(
            "this client serves only sync or only async code, and does not say where it is connected to; make the "
            "store from a URL, which serves both"
        )
    provider = options.get("credential_provider")
    return RedisEndpoint(
        host=options.get("host") or "localhost",
        port=int(options.get("port") or 6379),
        path=options.get("path"),
        db=int(options.get("db") or 0),
        user=options.get("username"),
        password=options.get("password"),
        cluster=cluster,
        sentinels=[Node(sentinel["host"], int(sentinel["port"])) for sentinel in sentinels],
        service=service,
        sentinel_user=sentinels[0].get("username") if sentinels else None,
        sentinel_password=sentinels[0].get("password") if sentinels else None,
        provider=None if provider is None else provider.get_credentials,
        tls=_make_tls_context(options) if secure else None,
        timeout=float(options.get("socket_timeout") or 5.0),
        connect_timeout=float(options.get("socket_connect_timeout") or 5.0),
    )


def _options_of(client: Any) -> dict[str, Any]:
    options: dict[str, Any] = client.connection_pool.connection_kwargs
    return options


def _make_tls_context(options: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path"), cadata=options.get("ssl_ca_data")
    )
    if options.get("ssl_certfile"):
        context.load_cert_chain(
            options["ssl_certfile"], options.get("ssl_keyfile"), password=options.get("ssl_password")
        )
    if str(options.get("ssl_cert_reqs", "required")).lower() in ("none", "cert_none", "verifymode.cert_none"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif options.get("ssl_check_hostname") is False:
        context.check_hostname = False
    return context
