"""Our exceptions for what goes wrong with a Redis: error replies, broken connections, settings that lose data."""

from __future__ import annotations

from typing import Final

from effectonce.backends.common.tls import tls_refusal
from effectonce.contracts import ConnectionLost
from effectonce.errors import BrokerUnavailable, ConfigurationError, CorruptRecord, StoreUnavailable, UnsafeStore, show


class ReplyError(Exception):
    """An error reply of the server; ``code`` is its first word."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


class NotRedis(ConnectionError):
    """The bytes received are not the protocol of Redis."""


class BrokerConnectionLost(BrokerUnavailable):
    """A broker's connection, which had worked, broke. The request may or may not have been carried out."""


class MissingGroup(BrokerUnavailable):
    """The stream, or its consumer group, does not exist: it was deleted, or lost in a failover."""


#: By the code of an error reply: why the server cannot serve us now. That may pass.
UNAVAILABLE_CODES: Final = {
    "LOADING": "is loading its data from disk",
    "BUSY": "is blocked by a long-running script (SCRIPT KILL ends it)",
    "MASTERDOWN": "is a replica that has lost its primary",
    "CLUSTERDOWN": "is part of a cluster that is down",
    "TRYAGAIN": "is moving this key to another node",
    "OOM": "is out of memory: raise maxmemory, or purge",
    "MISCONF": "refuses writes because it cannot save to disk",
    "NOREPLICAS": "refuses writes because too few replicas are connected",
}
_NOT_A_CLUSTER_URL: Final = "is a Redis Cluster; write its URL with redis+cluster://"
_MISCONFIGURED_CODES: Final = {
    "MOVED": _NOT_A_CLUSTER_URL,
    "ASK": _NOT_A_CLUSTER_URL,
    "CROSSSLOT": _NOT_A_CLUSTER_URL,
    "NOAUTH": "asks for a password; write it into the URL, redis://user:password@host",
    "WRONGPASS": "refused the user or the password (WRONGPASS); correct them in the URL, percent-encoded",
}


class RedisErrors:
    """Makes the exceptions that a store raises about one server. Their messages name it as ``shown``."""

    unavailable: type[StoreUnavailable] | type[BrokerUnavailable] = StoreUnavailable
    #: A connection that had worked broke: the caller drops it, and repeats.
    connection_lost: type[StoreUnavailable] | type[BrokerUnavailable] = ConnectionLost
    #: What an eviction would delete, and what that means.
    evictable = "records, and their operations would run again"

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def connect_error(self, error: BaseException, timeout: float) -> Exception:
        if refusal := tls_refusal(error, self.shown):
            return refusal
        if isinstance(error, TimeoutError):
            return self.unavailable(f"cannot connect to {self.shown} within {timeout:g} s")
        return self.unavailable(f"cannot connect to {self.shown}: {show(error) or type(error).__name__}")

    def timeout_error(self, timeout: float) -> Exception:
        return self.unavailable(f"{self.shown} did not answer within {timeout:g} s")

    def broken_connection_error(self, error: BaseException | None) -> Exception:
        why = show(error) if error else "closed by the server"
        return self.connection_lost(f"the connection to {self.shown} broke ({why})")

    def eviction_error(self, policy: str) -> UnsafeStore:
        return UnsafeStore(
            f"{self.shown} has maxmemory-policy {policy}: it may evict {self.evictable}. Run "
            "CONFIG SET maxmemory-policy noeviction (and write it into redis.conf), or give effectonce a Redis of its "
            "own"
        )

    def translate(self, error: ReplyError) -> Exception:
        """Return our exception for an error reply, which becomes its cause."""
        translated = self._translate(error.code, show(error, 400))  # the name of a key may be long
        translated.__cause__ = error
        return translated

    def _translate(self, code: str, text: str) -> Exception:
        if code in UNAVAILABLE_CODES:
            return self.unavailable(f"{self.shown} {UNAVAILABLE_CODES[code]} ({text})")
        if code in _MISCONFIGURED_CODES:
            return ConfigurationError(f"{self.shown} {_MISCONFIGURED_CODES[code]}")
        if code == "READONLY":
            return self.connection_lost(
                f"{self.shown} is a read-only replica, perhaps since a failover; claims need the primary"
            )
        if code == "NOPERM":
            return ConfigurationError(
                f"{self.shown} does not let this user do that ({text}); it needs: ACL SETUSER … ~eo:* &eo:* "
                "+@hash +@sortedset +@keyspace +@scripting +@pubsub +@connection +time +info +config|get, and for "
                "queues +@stream +@list +@transaction"
            )
        if code in ("WRONGTYPE", "CORRUPT"):
            return self._unreadable_key(text)
        if "unknown command" in text:
            return ConfigurationError(
                f"{self.shown} lacks a command that effectonce needs: {text}; use Redis >= 6 or Valkey"
            )
        return self.unavailable(f"{self.shown} answered with an error: {text}")

    def _unreadable_key(self, text: str) -> Exception:
        return CorruptRecord(
            f"a record in {self.shown} is not what effectonce wrote ({text}); look at it with HGETALL, then DEL it"
        )


class RedisBrokerErrors(RedisErrors):
    """Makes the exceptions that a broker raises about one server."""

    unavailable = BrokerUnavailable
    connection_lost = BrokerConnectionLost
    evictable = "a whole queue, and its messages would be lost"

    def _translate(self, code: str, text: str) -> Exception:
        if code == "NOGROUP" or "no such key" in text:
            return MissingGroup(f"{self.shown} has no such consumer group: {text}")
        return super()._translate(code, text)

    def _unreadable_key(self, text: str) -> Exception:
        return ConfigurationError(
            f"a key of this queue in {self.shown} has another type than effectonce gives it ({show(text, 200)}); "
            "delete it, or set the option namespace"
        )
