"""A Kafka cluster: the settings of its clients, read from a URL, and the translation of its errors to ours.

The driver is confluent-kafka and not aiokafka: its client sends, retries and stays in the group in threads of its own,
outside Python, so that a handler that holds the interpreter for seconds delays no heartbeat. Its calls block, so each
of them runs on a thread of ours.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from msgspec import Struct

from effectonce.backends.common.drivers import require_driver
from effectonce.errors import BrokerUnavailable, ConfigurationError, EffectOnceError, InvalidOption, show
from effectonce.values.durations import micros
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, one_of

T = TypeVar("T")

log = logging.getLogger("effectonce.kafka")

#: How long a new topic may be unknown to some of the brokers.
TOPIC_PROPAGATION_S: Final = 5.0
#: How long a metadata request waits for one answer, and the pause between two.
METADATA_TIMEOUT_S: Final = 1.0
METADATA_PAUSE_S: Final = 0.1

_TOPIC_NAME = re.compile(r"[A-Za-z0-9_.-]+")


# -- the cluster


class KafkaCluster(Struct, frozen=True, kw_only=True):
    """A cluster, the settings of its clients, and those of its topics. Times are in seconds."""

    shown: str  # the URL without its password
    config: dict[str, Any]  # of librdkafka, for every client
    timeout: float
    session_timeout: float
    max_body: int  # in bytes
    retention: float | None  # None: unlimited
    partitions: int  # -1: as the broker is set
    replication: int  # -1: as the broker is set

    def __repr__(self) -> str:
        return self.shown  # the settings hold the password

    __str__ = __repr__

    def make_client(self, kind: Callable[..., T], on_error: Callable[[Any], None], config: dict[str, Any]) -> T:
        """Make a client of the class ``kind``. It reports errors that belong to no call of ours to ``on_error``."""
        return kind({**self.config, **config, "error_cb": on_error}, logger=log)


def parse_cluster(address: Address) -> KafkaCluster:
    """Read the cluster from ``kafka://user:password@host:9092?…``. `KafkaBackend` lists the options."""
    require_driver("Kafka", "kafka", "confluent_kafka")
    if not address.host or address.path not in ("", "/"):
        raise InvalidOption(f"kafka:// has a host and options, as in kafka://localhost:9092; got {address}")
    more_servers = address.take("bootstrap", str, "").split(",")
    servers = [address.netloc if address.port else f"{address.netloc}:9092", *filter(None, more_servers)]
    has_login = address.user is not None
    security = address.take("security", one_of("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"), "")
    mechanism = address.take("mechanism", one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), "PLAIN")
    security = security or ("sasl_ssl" if has_login else "plaintext")
    if has_login != security.startswith("sasl"):
        raise InvalidOption(f"{address}: a user needs security=sasl_ssl (or sasl_plaintext), and those need a user")
    timeout = address.seconds("timeout", 30.0)
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(servers),
        "client.id": "effectonce",
        "security.protocol": security,
        "socket.timeout.ms": max(round(timeout * 1000), 1000),
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 2000,
        "log_level": 2,  # critical only: else each failed attempt to connect is logged; errors that matter are raised
    }
    if has_login:
        config |= {"sasl.mechanism": mechanism, "sasl.username": address.user, "sasl.password": address.password or ""}
    if ca := address.take("ca_file", str, ""):
        config["ssl.ca.location"] = ca
    week: float | None = 7 * 86400.0
    cluster = KafkaCluster(
        shown=str(address),
        config=config,
        timeout=timeout,
        session_timeout=address.seconds("session_timeout", 45.0),
        max_body=address.take("max_body", int, 1_000_000),
        retention=address.take("retention", _parse_retention, week),
        partitions=address.take("partitions", int, -1),
        replication=address.take("replication", int, -1),
    )
    address.refuse_unknown_options()
    return cluster


def _parse_retention(text: str) -> float | None:
    return None if text == "unlimited" else micros(text, "retention") / 1e6


def require_topic_name(name: str, what: str = "queue") -> str:
    """Return ``name`` if it can be a topic's name, or a part of one; else raise `InvalidOption`."""
    if _TOPIC_NAME.fullmatch(require_name(name, what)) is None:
        raise InvalidOption(f"{show(name)!r} cannot be a {what} on Kafka; use letters, digits and _ . - only")
    return name


def require_names(queue: str, group: str) -> tuple[str, str]:
    """Check the names of a queue and a group by `require_topic_name`, and return them."""
    return require_topic_name(queue), require_topic_name(group, "group")


def dead_letter_topic(queue: str, group: str) -> str:
    """The topic of a group's dead letters: groups read a queue independently, so each has its own."""
    return f"{queue}.dead.{group}"


# -- errors, by the names of librdkafka's error codes

REFUSED_CODES = {
    "_AUTHENTICATION",
    "_SSL",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
}
MISSING_CODES = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
TOO_LARGE_CODES = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"}
INVALID_CODES = {
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


def translate(error: Any, cluster: KafkaCluster, topic: str = "") -> EffectOnceError:
    """Return our error for a `KafkaError`, or for the `KafkaException` that wraps one."""
    if isinstance(error, Exception) and error.args:
        error = error.args[0]
    name, text = error.name(), show(error.str(), 200)
    if name in REFUSED_CODES:
        return ConfigurationError(f"{cluster} refuses this client ({name}: {text}); check user, password, TLS and ACLs")
    if name in MISSING_CODES:
        return ConfigurationError(
            f"there is no topic {topic} at {cluster}; create it, for example with connect_broker(…).declare(queue)"
        )
    if name in TOO_LARGE_CODES:
        return ConfigurationError(
            f"the message is over what {cluster} takes ({text}); raise max.message.bytes of topic {topic} and the "
            "option max_body, or send less"
        )
    if name in INVALID_CODES:
        return ConfigurationError(f"{cluster} does not take this ({name}: {text})")
    return BrokerUnavailable(f"{cluster} does not answer ({name}: {text})")


def wait_for_topic(client: Any, cluster: KafkaCluster, topic: str, refusal: Callable[[], Exception | None]) -> None:
    """Wait until the cluster knows ``topic``. ``refusal`` returns the error that ``on_error`` got meanwhile, if any."""
    from confluent_kafka import KafkaException

    started_at = time.monotonic()
    while True:
        try:
            metadata = client.list_topics(topic, timeout=min(METADATA_TIMEOUT_S, cluster.timeout)).topics[topic]
        except KafkaException as error:
            client.poll(METADATA_PAUSE_S)  # calls on_error with the cause
            if error_meanwhile := refusal():
                raise error_meanwhile from None
            if time.monotonic() - started_at >= cluster.timeout:
                raise translate(error, cluster) from error
            continue
        if metadata.error is None:
            return
        # An election of a leader may be under way, or a new topic may still be unknown to a broker.
        code, patience_s = metadata.error.name(), cluster.timeout
        if code in MISSING_CODES:
            patience_s = min(TOPIC_PROPAGATION_S, patience_s)
        if code in REFUSED_CODES or time.monotonic() - started_at >= patience_s:
            raise translate(metadata.error, cluster, topic)
        time.sleep(METADATA_PAUSE_S)
