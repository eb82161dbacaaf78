"""Where a Kafka cluster is: the settings of its clients, read from a URL, and the names of its topics.

The driver is confluent-kafka and not aiokafka: its client sends, retries and stays in the group in threads of its own,
outside Python, so that a handler that holds the interpreter for seconds delays no heartbeat. Its calls block, so each
of them runs on a thread of ours.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from effectonce.backends.common.drivers import require_driver
from effectonce.errors import InvalidOption, show
from effectonce.values.durations import micros
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, one_of

T = TypeVar("T")

log = logging.getLogger("effectonce.kafka")

_TOPIC_NAME = re.compile(r"[A-Za-z0-9_.-]+")


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
        raise InvalidOption(f"{address}: a user name needs security=sasl_ssl (or sasl_plaintext), and the reverse")
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
