"""The topics of a queue: made where they are missing, and checked for settings that lose messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from effectonce.errors import ConfigurationError

from .client import Cluster, dead_topic, reach, translate

#: Dead letters stay until they are removed; "delete" is there so that what was removed can be cut off.
DEAD_CONFIG: Final = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}


def declare(cluster: Cluster, queue: str, group: str) -> None:
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    retention = "-1" if cluster.retention is None else str(round(cluster.retention * 1000))
    made = [
        NewTopic(queue, cluster.partitions, cluster.replication, config={"retention.ms": retention}),
        NewTopic(dead_topic(queue, group), 1, cluster.replication, config=DEAD_CONFIG),
    ]
    admin = Admin(cluster)
    admin.ask(lambda client, timeout: client.create_topics(made, request_timeout=timeout), "TOPIC_ALREADY_EXISTS")
    for topic in made:  # brokers learn of it a little later than the one that made it
        reach(admin.client, cluster, topic.topic, admin.refusal)


def check(cluster: Cluster, queue: str, group: str) -> None:
    admin, dead = Admin(cluster), dead_topic(queue, group)
    config = admin.config(queue)
    if "compact" in config["cleanup.policy"]:
        raise ConfigurationError(
            f"topic {queue} at {cluster} is compacted: of messages with one ordering key only the last would be left; "
            "set its cleanup.policy to delete"
        )
    _refuse_loss(cluster, queue, config, admin.replicas(queue))
    kept = int(config["retention.ms"]) / 1000
    if cluster.retention is not None and not 0 <= kept <= cluster.retention:
        span = "unlimited" if kept < 0 else f"{kept:.0f}s"
        raise ConfigurationError(
            f"topic {queue} keeps its messages for longer ({span}) than the {cluster.retention:.0f}s in which "
            f"{cluster} was said to deliver them; add ?retention={span} to the URL, or lower the topic's retention.ms"
        )
    config = admin.config(dead)
    _refuse_loss(cluster, dead, config, admin.replicas(dead))
    if config["cleanup.policy"] == "delete" or config["retention.ms"] != "-1":
        raise ConfigurationError(
            f"topic {dead} at {cluster} would drop dead letters by age; set its cleanup.policy to compact,delete and "
            "its retention.ms to -1"
        )


def _refuse_loss(cluster: Cluster, topic: str, config: Mapping[str, str], replicas: int) -> None:
    """Where a broker fails, the topic may lose what it has confirmed."""
    remedy = ""
    if config["unclean.leader.election.enable"] == "true":
        remedy = "unclean.leader.election.enable to false"
    elif replicas > 1 and int(config["min.insync.replicas"]) < 2:
        remedy = "min.insync.replicas to 2"
    if remedy:
        raise ConfigurationError(
            f"topic {topic} at {cluster} may lose messages that it has confirmed; set its {remedy}"
        )


class Admin:
    """Questions about topics, and their answers. Its calls block."""

    def __init__(self, cluster: Cluster) -> None:
        from confluent_kafka.admin import AdminClient

        self._cluster = cluster
        self._heard: list[Exception] = []
        self.client = cluster.client(AdminClient, lambda error: self._heard.append(translate(error, cluster)), {})

    def refusal(self) -> Exception | None:
        """What will not go away by itself."""
        return next((error for error in self._heard if isinstance(error, ConfigurationError)), None)

    def config(self, topic: str) -> dict[str, str]:
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        asked = ConfigResource(ResourceType.TOPIC, topic)
        (entries,) = self.ask(lambda client, timeout: client.describe_configs([asked], request_timeout=timeout))
        return {name: entry.value for name, entry in entries.items()}

    def replicas(self, topic: str) -> int:
        """How many copies there are of the partition with the fewest."""
        from confluent_kafka import KafkaException

        try:
            found = self.client.list_topics(topic, timeout=self._cluster.timeout).topics[topic]
        except KafkaException as error:
            raise self.refusal() or translate(error, self._cluster, topic) from error
        return min((len(partition.replicas) for partition in found.partitions.values()), default=0)

    def ask(self, question: Callable[[Any, float], Mapping[Any, Any]], fine: str = "") -> list[Any]:
        """The answers to one of the client's questions. An error named ``fine`` is one too."""
        from confluent_kafka import KafkaException

        answers = []
        for about, future in question(self.client, self._cluster.timeout).items():
            try:
                answers.append(future.result())
            except KafkaException as error:
                if error.args[0].name() == fine:
                    continue
                self.client.poll(0)  # hears what is wrong
                raise self.refusal() or translate(error, self._cluster, getattr(about, "name", about)) from error
        return answers
