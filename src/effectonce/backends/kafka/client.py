"""Kafka's clients: settings from an address, errors as ours, packets as records, and a sender that is confirmed.

The driver is confluent-kafka and not aiokafka: its client sends, retries and keeps its place in the group in threads
of its own, outside Python, where a handler that holds the interpreter for seconds starves no heartbeat. Its calls
block, so all of them are made in threads of ours.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Struct

from effectonce.babelqueue import headers as bindings
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, EffectOnceError, InvalidOption, MissingDriver, show
from effectonce.values.durations import micros
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address

T = TypeVar("T")

log = logging.getLogger("effectonce.kafka")

#: How long a topic that was made a moment ago may be unknown to some broker, in seconds.
PROPAGATION: Final = 5.0
#: How old a message may be to keep the time at which it was made, in seconds.
RECENT: Final = 3600.0
#: Headers of ours that no packet shows.
ID: Final = "eo-id"
ORDERING_KEY: Final = "eo-ordering-key"

_TOPIC = re.compile(r"[A-Za-z0-9_.-]+")


# -- where


class Cluster(Struct, frozen=True, kw_only=True):
    """A cluster and how to reach it."""

    shown: str
    config: dict[str, Any]
    timeout: float
    session_timeout: float
    max_body: int
    retention: float | None
    partitions: int
    replication: int

    def __repr__(self) -> str:
        return self.shown  # the settings hold the password

    __str__ = __repr__

    def client(self, make: Callable[..., T], on_error: Callable[[Any], None], config: dict[str, Any]) -> T:
        """A client of the class ``make``; ``on_error`` hears what goes wrong behind our back."""
        return make({**self.config, **config, "error_cb": on_error}, logger=log)


def parse(address: Address) -> Cluster:
    """The cluster of ``kafka://user:password@host:9092?…``; `KafkaBackend` lists the options."""
    if find_spec("confluent_kafka") is None:
        raise MissingDriver("Kafka needs confluent_kafka; install it with: pip install 'effectonce[kafka]'")
    if not address.host or address.path not in ("", "/"):
        raise InvalidOption(f"kafka:// has a host and options, as in kafka://localhost:9092; got {address}")
    more = address.take("bootstrap", str, "")
    servers = [address.netloc if address.port else f"{address.netloc}:9092", *filter(None, more.split(","))]
    login = address.user is not None
    security = address.take("security", _one_of("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"), "")
    mechanism = address.take("mechanism", _one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), "PLAIN")
    security = security or ("sasl_ssl" if login else "plaintext")
    if login != security.startswith("sasl"):
        raise InvalidOption(f"{address}: a user needs security=sasl_ssl (or sasl_plaintext), and those need a user")
    timeout = address.seconds("timeout", 30.0)
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(servers),
        "client.id": "effectonce",
        "security.protocol": security,
        "socket.timeout.ms": max(round(timeout * 1000), 1000),
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 2000,
        "log_level": 2,  # each failed attempt to connect would be a line; what matters is raised
    }
    if login:
        config |= {"sasl.mechanism": mechanism, "sasl.username": address.user, "sasl.password": address.password or ""}
    if ca := address.take("ca_file", str, ""):
        config["ssl.ca.location"] = ca
    week: float | None = 7 * 86400.0
    cluster = Cluster(
        shown=str(address),
        config=config,
        timeout=timeout,
        session_timeout=address.seconds("session_timeout", 45.0),
        max_body=address.take("max_body", int, 1_000_000),
        retention=address.take("retention", _retention, week),
        partitions=address.take("partitions", int, -1),
        replication=address.take("replication", int, -1),
    )
    address.done()
    return cluster


def _one_of(*words: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in words:
            raise InvalidOption(f"it is one of {', '.join(words)}")
        return text

    return convert


def _retention(text: str) -> float | None:
    return None if text == "unlimited" else micros(text, "retention") / 1e6


def topic_name(name: str, what: str = "queue") -> str:
    """``name``, where it may be (a part of) the name of a topic."""
    if _TOPIC.fullmatch(require_name(name, what)) is None:
        raise InvalidOption(f"{show(name)!r} is no {what} on Kafka: its topics take letters, digits and _ . - only")
    return name


def dead_topic(queue: str, group: str) -> str:
    """Groups read a queue each for itself, and give up each for itself."""
    return f"{queue}.dead.{group}"


# -- records


class Record(NamedTuple):
    """A message as Kafka keeps it. ``value`` None is a tombstone; ``timestamp`` is in milliseconds, 0: now."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp: int = 0


def record_of(packet: Packet) -> Record:
    headers = [(name, value.encode()) for name, value in packet.headers.items()]
    if packet.id:
        headers.append((ID, packet.id.encode()))
    key = None if packet.ordering_key is None else packet.ordering_key.encode()
    return Record(key, packet.body, headers, _timestamp(packet.headers.get(bindings.CREATED)))


def _timestamp(created: str | None) -> int:
    """When BabelQueue's envelope was written, as its contract wants it. Not where that is long ago: Kafka reckons from
    it when it removes what is old."""
    millis = int(created) if created is not None and created.isdecimal() else 0
    return millis if abs(time.time() * 1000 - millis) < RECENT * 1000 else 0


def packet_of(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]] | None) -> Packet:
    """The packet of a record, which may be another producer's: what is not text is shown as well as it can be."""
    texts = {name: _text(text) for name, text in headers or () if text is not None}
    id = texts.pop(ID, "")
    ordering_key = texts.pop(ORDERING_KEY, None) if key is None else _text(key)
    return Packet(body=value or b"", headers=texts, id=id, ordering_key=ordering_key)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


# -- errors

_REFUSED = {
    "_AUTHENTICATION",
    "_SSL",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
}
_MISSING = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
_TOO_LARGE = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"}
_BAD = {
    "GROUP_MAX_SIZE_REACHED",
    "INCONSISTENT_GROUP_PROTOCOL",
    "INVALID_CONFIG",
    "INVALID_PARTITIONS",
    "INVALID_RECORD",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_SESSION_TIMEOUT",
    "POLICY_VIOLATION",
    "TOPIC_EXCEPTION",
    "UNSUPPORTED_VERSION",
}


def translate(error: Any, cluster: Cluster, topic: str = "") -> EffectOnceError:
    """One of our errors for a `KafkaError`, or for the `KafkaException` around one."""
    if isinstance(error, Exception) and error.args:
        error = error.args[0]
    name, text = error.name(), show(error.str(), 200)
    if name in _REFUSED:
        return ConfigurationError(f"{cluster} refuses this client ({name}: {text}); check user, password, TLS and ACLs")
    if name in _MISSING:
        return ConfigurationError(
            f"there is no topic {topic} at {cluster}; create it, for example with connect_broker(…).declare(queue)"
        )
    if name in _TOO_LARGE:
        return ConfigurationError(
            f"the message is over what {cluster} takes ({text}); raise max.message.bytes of topic {topic} and the "
            "option max_body, or send less"
        )
    if name in _BAD:
        return ConfigurationError(f"{cluster} does not take this ({name}: {text})")
    return BrokerUnavailable(f"{cluster} does not answer ({name}: {text})")


def reach(client: Any, cluster: Cluster, topic: str, refusal: Callable[[], Exception | None]) -> None:
    """Return when ``topic`` is known to be there; ``refusal`` is what `on_error` has heard meanwhile."""
    from confluent_kafka import KafkaException

    began = time.monotonic()
    while True:
        try:
            found = client.list_topics(topic, timeout=min(1.0, cluster.timeout)).topics[topic]
        except KafkaException as error:
            client.poll(0.1)  # hears what is wrong
            if heard := refusal():
                raise heard from None
            if time.monotonic() - began >= cluster.timeout:
                raise translate(error, cluster) from error
            continue
        if found.error is None:
            return
        # A leader that is being elected is no reason to fail, nor is a topic that was made a moment ago.
        name = found.error.name()
        patience = 0.0 if name in _REFUSED else min(PROPAGATION if name in _MISSING else 3600.0, cluster.timeout)
        if time.monotonic() - began >= patience:
            raise translate(found.error, cluster, topic)
        time.sleep(0.1)


# -- sending


class Sender:
    """A producer that waits until all in-sync replicas have what it sent. Several tasks may send: they take turns.

    ``idempotent``: a resend of the client's own is not stored twice, nor out of order. It takes half a second to begin;
    records with a key of their own in a compacted topic do without.
    """

    def __init__(self, cluster: Cluster, *, idempotent: bool = True) -> None:
        self._cluster = cluster
        self._idempotent = idempotent
        self._thread = ThreadPoolExecutor(1, "effectonce-kafka-send")
        self._producer: Any = None
        self._refusal: Exception | None = None

    async def send(self, topic: str, records: Sequence[Record]) -> list[Exception | None]:
        """Send all, and wait for each delivery report (F44, F45). Raises where none is known to have arrived."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._send, topic, records)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._drop)
        self._thread.shutdown(wait=False)

    def _open(self) -> Any:
        from confluent_kafka import Producer

        self._refusal = None
        config = {
            "enable.idempotence": self._idempotent,
            "acks": "all",
            "message.timeout.ms": max(round(self._cluster.timeout * 1000), 1),
            "topic.metadata.propagation.max.ms": round(min(PROPAGATION, self._cluster.timeout) * 1000),
            "message.max.bytes": max(self._cluster.max_body + 65_536, 1000),
            # As Java's clients do it: all producers of a key agree about its partition.
            "partitioner": "murmur2_random",
        }
        return self._cluster.client(Producer, self._heard, config)

    def _heard(self, error: Any) -> None:
        if error.name() in _REFUSED or error.fatal():
            self._refusal = translate(error, self._cluster)

    def _send(self, topic: str, records: Sequence[Record]) -> list[Exception | None]:
        from confluent_kafka import KafkaException

        if not records:
            return []
        unknown = BrokerUnavailable(f"{self._cluster} has not confirmed the message in time; send it again, as it is")
        outcomes: list[Exception | None] = [unknown] * len(records)

        def report(at: int, error: Any, message: Any) -> None:
            outcomes[at] = None if error is None else translate(error, self._cluster, topic)

        producer = self._producer = self._producer or self._open()
        for at, record in enumerate(records):
            try:
                producer.produce(
                    topic,
                    record.value,
                    record.key,
                    on_delivery=partial(report, at),
                    headers=record.headers,
                    timestamp=record.timestamp,
                )
            except BufferError:  # as if unconfirmed
                continue
            except KafkaException as error:  # refused before it was sent; those behind it may still go
                outcomes[at] = translate(error, self._cluster, topic)
        deadline = time.monotonic() + self._cluster.timeout + 1.0
        while producer.flush(0.1) and self._refusal is None and time.monotonic() < deadline:
            pass
        refusal = self._refusal
        if refusal is not None or any(isinstance(outcome, BrokerUnavailable) for outcome in outcomes):
            self._drop()  # what it still has must not arrive later, beside its repetition
            if None not in outcomes:
                if refusal is not None:
                    raise refusal
                if all(isinstance(outcome, BrokerUnavailable) for outcome in outcomes):
                    raise next(filter(None, outcomes))
        return outcomes

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(1.0)
