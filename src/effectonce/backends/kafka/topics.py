"""The topics of a queue and its dead letters: creating them, and checking them for settings that lose messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from effectonce.errors import ConfigurationError

from .endpoint import KafkaCluster, dead_letter_topic
from .errors import MISSING_CODES, REFUSED_CODES, translate

#: How long a new topic may be unknown to some of the brokers.
TOPIC_PROPAGATION_S: Final = 5.0
#: How long a metadata request waits for one answer, and the pause between two.
METADATA_TIMEOUT_S: Final = 1.0
METADATA_PAUSE_S: Final = 0.1

#: Dead letters stay until they are removed; "delete" is there so that removed ones can be truncated.
DEAD_LETTER_CONFIG: Final = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}


def declare_topics(cluster: KafkaCluster, queue: str, group: str) -> None:
    """Create the topics that are missing, and wait until all brokers know them."""
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    retention = "-1" if cluster.retention is None else str(round(cluster.retention * 1000))
    topics = [
        NewTopic(queue, cluster.partitions, cluster.replication, config={"retention.ms": retention}),
        NewTopic(dead_letter_topic(queue, group), 1, cluster.replication, config=DEAD_LETTER_CONFIG),
    ]
    admin = KafkaAdmin(cluster)
    admin.call("create_topics", topics, ignored_code="TOPIC_ALREADY_EXISTS")
    for topic in topics:  # the other brokers learn of a topic a little later than the one that created it
        wait_for_topic(admin.client, cluster, topic.topic, admin.refusal)


def check_topics(cluster: KafkaCluster, queue: str, group: str) -> None:
    """Raise `ConfigurationError` where the topics would lose messages, or keep them for longer than the URL says."""
    admin, dead_letters = KafkaAdmin(cluster), dead_letter_topic(queue, group)
    config = admin.config(queue)
    if "compact" in config["cleanup.policy"]:
        raise ConfigurationError(
            f"topic {queue} at {cluster} is compacted, so that only the newest message of each ordering key is kept; "
            "set its cleanup.policy to delete"
        )
    _refuse_loss(cluster, queue, config, admin.replicas(queue))
    retention = int(config["retention.ms"]) / 1000
    if cluster.retention is not None and not 0 <= retention <= cluster.retention:
        span = "unlimited" if retention < 0 else f"{retention:.0f}s"
        raise ConfigurationError(
            f"topic {queue} keeps its messages for longer ({span}) than the {cluster.retention:.0f}s that the URL of "
            f"{cluster} names; write ?retention={span} there, or lower the topic's retention.ms"
        )
    config = admin.config(dead_letters)
    _refuse_loss(cluster, dead_letters, config, admin.replicas(dead_letters))
    if config["cleanup.policy"] == "delete" or config["retention.ms"] != "-1":
        raise ConfigurationError(
            f"topic {dead_letters} at {cluster} would delete dead letters by age; set its cleanup.policy to "
            "compact,delete and its retention.ms to -1"
        )


def _refuse_loss(cluster: KafkaCluster, topic: str, config: Mapping[str, str], replicas: int) -> None:
    """Raise where the topic may lose confirmed messages when a broker fails."""
    remedy = ""
    if config["unclean.leader.election.enable"] == "true":
        remedy = "unclean.leader.election.enable to false"
    elif replicas > 1 and int(config["min.insync.replicas"]) < 2:
        remedy = "min.insync.replicas to 2"
    if remedy:
        raise ConfigurationError(
            f"topic {topic} at {cluster} may lose messages that it has confirmed; set its {remedy}"
        )


class KafkaAdmin:
    """Calls of the admin client about topics. They block."""

    def __init__(self, cluster: KafkaCluster) -> None:
        from confluent_kafka.admin import AdminClient

        self._cluster = cluster
        self._errors: list[Exception] = []  # those that belong to no call
        self.client = cluster.make_client(AdminClient, lambda error: self._errors.append(translate(error, cluster)), {})

    def refusal(self) -> Exception | None:
        """The first error that will not go away by itself; None: there was none."""
        return next((error for error in self._errors if isinstance(error, ConfigurationError)), None)

    def config(self, topic: str) -> dict[str, str]:
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        resource = ConfigResource(ResourceType.TOPIC, topic)
        (entries,) = self.call("describe_configs", [resource])
        return {name: entry.value for name, entry in entries.items()}

    def replicas(self, topic: str) -> int:
        """How many replicas the partition with the fewest has."""
        from confluent_kafka import KafkaException

        try:
            metadata = self.client.list_topics(topic, timeout=self._cluster.timeout).topics[topic]
        except KafkaException as error:
            raise self.refusal() or translate(error, self._cluster, topic) from error
        return min((len(partition.replicas) for partition in metadata.partitions.values()), default=0)

    def call(self, operation: str, subjects: Sequence[Any], *, ignored_code: str = "") -> list[Any]:
        """Call the client's method ``operation`` for ``subjects``, and return the results. An error with the code
        ``ignored_code`` is ignored."""
        from confluent_kafka import KafkaException

        results = []
        futures = getattr(self.client, operation)(subjects, request_timeout=self._cluster.timeout)
        for subject, future in futures.items():
            while not future.done() and self.refusal() is None:
                self.client.poll(METADATA_PAUSE_S)  # calls on_error with what is wrong, long before the call gives up
            try:
                if not future.done() and (refusal := self.refusal()):
                    raise refusal
                results.append(future.result())
            except KafkaException as error:
                if error.args[0].name() == ignored_code:
                    continue
                self.client.poll(0)  # calls on_error with the cause
                raise self.refusal() or translate(error, self._cluster, getattr(subject, "name", subject)) from error
        return results


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
        if time.monotonic() - started_at >= _topic_timeout(metadata.error.name(), cluster):
            raise translate(metadata.error, cluster, topic)
        time.sleep(METADATA_PAUSE_S)


def _topic_timeout(code: str, cluster: KafkaCluster) -> float:
    """How long to wait for an error about a topic to end: an election of a leader may be under way, or a new topic may
    still be unknown to a broker."""
    if code in REFUSED_CODES:
        return 0.0
    if code in MISSING_CODES:
        return min(TOPIC_PROPAGATION_S, cluster.timeout)
    return cluster.timeout
