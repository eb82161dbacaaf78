"""Three Kafka brokers, also controllers, that keep every topic threefold: `with kafka_cluster() as cluster:`."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from tests.harness.kafka import CLUSTER, Kafka, find_kafka
from tests.harness.process import ServerFailed, free_port

#: They win over those of the single broker. A write is confirmed once two have it; one that lags leads nothing.
REPLICATED = """
node.id={node}
controller.quorum.voters={voters}
listeners=PLAIN://{{at}}:{{port}},CONTROLLER://{{at}}:{controller}
advertised.listeners=PLAIN://{{at}}:{{port}}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
unclean.leader.election.enable=false
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
controller.quorum.election.timeout.ms=1000
controller.quorum.fetch.timeout.ms=2000
replica.lag.time.max.ms=5000
"""


class KafkaNode(Kafka):
    """One of the three."""

    name = "kafka-node"

    def greet(self) -> None:
        """It has our port, and listens there: that is enough, since it only does when the cluster has a leader."""


class KafkaCluster:
    """The three brokers. A fault hits the leader of most partitions."""

    def __init__(self) -> None:
        java, jars = find_kafka()
        controllers = [free_port() for _ in range(3)]
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
        self.nodes: list[KafkaNode] = []
        try:
            for number, controller in enumerate(controllers, 1):
                properties = REPLICATED.format(node=number, voters=voters, controller=controller)
                self.nodes.append(KafkaNode(java, jars, properties))
            with ThreadPoolExecutor(len(self.nodes)) as pool:  # a broker listens once a second controller runs
                list(pool.map(KafkaNode.start, self.nodes))
            self._wait_for_all()
        except BaseException:
            self.close(failed=True)
            raise

    @property
    def url(self) -> str:
        return f"kafka://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def fail_over(self) -> None:
        """Kill a leader. It comes back when the others lead all that it led."""
        leader = self._leader()
        leader.kill()
        self._wait_until(lambda: self._leads_nothing(leader))
        leader.restart()
        self._wait_for_all()

    def pause(self, seconds: float) -> None:
        """Freeze a leader until the others lead, and ``seconds`` longer; then it goes on."""
        leader = self._leader()
        leader.stop()
        self._wait_until(lambda: self._leads_nothing(leader))
        time.sleep(seconds)
        leader.resume()
        self._wait_for_all()

    def roll(self) -> None:
        for node in self.nodes:
            node.restart()
            self._wait_for_all()

    def _metadata(self) -> Any:
        from confluent_kafka.admin import AdminClient

        addresses = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return AdminClient({"bootstrap.servers": addresses, "log_level": 0}).list_topics(timeout=5)

    def _leaders(self) -> list[int]:
        topics = self._metadata().topics.values()
        return [partition.leader for topic in topics for partition in topic.partitions.values()]

    def _leader(self) -> KafkaNode:
        leaders = self._leaders()
        return max(self.nodes, key=lambda node: leaders.count(self.nodes.index(node) + 1))

    def _leads_nothing(self, node: KafkaNode) -> bool:
        leaders = self._leaders()
        return -1 not in leaders and self.nodes.index(node) + 1 not in leaders

    def _is_whole(self) -> bool:
        """Whether all three are there, and every partition is in step on each of them."""
        found = self._metadata()
        partitions = [part for topic in found.topics.values() for part in topic.partitions.values()]
        in_step = all(part.leader != -1 and len(part.isrs) == len(part.replicas) for part in partitions)
        return found.cluster_id == CLUSTER and len(found.brokers) == 3 and in_step

    def _wait_for_all(self) -> None:
        self._wait_until(self._is_whole)

    @staticmethod
    def _wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
        deadline, problem = time.monotonic() + seconds, ""
        while True:
            try:
                if condition():
                    return
            except Exception as error:  # while there is no leader no server answers
                problem = f": {error!r}"
            if time.monotonic() > deadline:
                raise ServerFailed(f"the Kafka brokers were not complete in time{problem}")
            time.sleep(0.2)

    def close(self, failed: bool = False) -> None:
        for node in self.nodes:
            node.close(failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)


def kafka_cluster() -> KafkaCluster:
    return KafkaCluster()
