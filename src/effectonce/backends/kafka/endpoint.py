"""Where a Kafka cluster is: the settings of its clients, read from a URL, and the names of its topics.

The driver is confluent-kafka and not aiokafka: its client sends, retries and stays in the group in threads of its own,
outside Python, so that a handler that holds the interpreter for seconds delays no heartbeat. Its calls block, so each
of them runs on a thread of ours.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from msgspec import Struct

from effectonce.backends.common.drivers import require_driver
from effectonce.errors import InvalidOption, show
from effectonce.values.durations import micros
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, HostPort

from .errors import translate
from .security import security_settings

T = TypeVar("T")

log = logging.getLogger("effectonce.kafka")

_TOPIC_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class KafkaCluster(Struct, frozen=True, kw_only=True):
    """A cluster, the settings of its clients, and those of its topics. Times are in seconds."""

    shown: str  # the URL without its password
    config: dict[str, Any]  # of librdkafka, for every client
    settings: dict[str, str]  # of librdkafka, as the URL has them; they win over those that we choose for a client
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
        from confluent_kafka import KafkaException

        try:
            return kind({**self.config, **config, **self.settings, "error_cb": on_error}, logger=log)
        except KafkaException as error:  # a setting that this librdkafka does not have, or no token in time
            raise translate(error, self) from error


def parse_cluster(address: Address) -> KafkaCluster:
    """Read the cluster from ``kafka://user:password@host:9092?…``. `KafkaBackend` lists the options."""
    require_driver("Kafka", "kafka", "confluent_kafka")
    if not all(node.host for node in address.hosts) or address.path not in ("", "/"):
        raise InvalidOption(f"kafka:// has a host and options, as in kafka://localhost:9092; got {address}")
    timeout = address.seconds("timeout", 30.0)
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(map(_format_node, address.hosts)),
        "client.id": "effectonce",
        "socket.timeout.ms": max(round(timeout * 1000), 1000),
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 2000,
        "log_level": 2,  # critical only: else each failed attempt to connect is logged; errors that matter are raised
    }
    config |= security_settings(address)
    week: float | None = 7 * 86400.0
    cluster = KafkaCluster(
        shown=str(address),
        config=config,
        settings=take_librdkafka_settings(address),
        timeout=timeout,
        session_timeout=address.seconds("session_timeout", 45.0),
        max_body=address.take("max_body", int, 1_000_000),
        retention=address.take("retention", _parse_retention, week),
        partitions=address.take("partitions", int, -1),
        replication=address.take("replication", int, -1),
    )
    address.refuse_unknown_options()
    return cluster


def _format_node(node: HostPort) -> str:
    host = f"[{node.host}]" if ":" in node.host else node.host
    return f"{host}:{node.port or 9092}"


#: Settings of librdkafka that cannot be passed on: a promise rests on them, or an option of ours sets them.
_OUR_SETTINGS: Final = {
    "auto.offset.reset",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "group.protocol",
    "message.max.bytes",
    "metadata.broker.list",
    "max.in.flight.requests.per.connection",
    "message.timeout.ms",
    "partition.assignment.strategy",
    "request.required.acks",
    "security.protocol",
    "session.timeout.ms",
    "transactional.id",
}


_SETTINGS_WITHOUT_DOT: Final = ("debug", "log_level")


def take_librdkafka_settings(address: Address) -> dict[str, str]:
    """Read librdkafka's own settings, which have dots in their names. They go to every client as they stand. Refuses
    those on which a promise rests."""
    settings = address.take_all(lambda name: "." in name or name in _SETTINGS_WITHOUT_DOT)
    if ours := sorted(_OUR_SETTINGS & settings.keys()):
        raise InvalidOption(
            f"{address} sets {', '.join(ours)}, on which a promise of effectonce rests, or which has an option of its "
            "own; leave it out"
        )
    return settings


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
