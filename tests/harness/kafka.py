"""A real Kafka broker, one KRaft node: `with kafka.kafka() as server: connect_broker(server.url)`.

It has two more listeners: one behind a `FaultProxy` (`cut_url`), since a client connects to the address that the broker
advertises, and one that wants a password (`locked_url`).
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness.installed import ROOT, Missing, wants_next
from tests.harness.process import Server, ServerFailed, free_port
from tests.harness.proxy import FaultProxy

CLUSTER = "ZWZmZWN0b25jZSBrYWZrYQ"
PARTITIONS = 4
PASSWORD = "open sesame"

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{at}:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAIN:PLAINTEXT,CUT:PLAINTEXT,LOCKED:SASL_PLAINTEXT
listeners=PLAIN://{at}:{port},CUT://{at}:{behind},LOCKED://{at}:{locked},CONTROLLER://{at}:{controller}
advertised.listeners=PLAIN://{at}:{port},CUT://{at}:{proxy},LOCKED://{at}:{locked}
inter.broker.listener.name=PLAIN
listener.name.locked.sasl.enabled.mechanisms=PLAIN
listener.name.locked.plain.sasl.jaas.config={plain} required user_eo="{password}";
log.dirs={data}
num.partitions={partitions}
auto.create.topics.enable=false
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
num.network.threads=2
num.io.threads=4
"""


class Kafka(Server):
    name = "kafka"

    def __init__(self, java: str, jars: Path, properties: str) -> None:
        super().__init__()
        self._java = java
        self._jars = jars
        self._template = PROPERTIES + properties
        self._behind, self._locked, self._controller = free_port(), free_port(), free_port()
        self.proxy = FaultProxy(self._behind)

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"

    @property
    def cut_url(self) -> str:
        return f"kafka://127.0.0.1:{self.proxy.port}"

    def locked_url(self, password: str) -> str:
        return f"kafka://eo:{password}@127.0.0.1:{self._locked}?tls=no"

    def prepare(self) -> None:
        self._configure()  # formatting does not ask which ports
        self.run([*self._jvm(), "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._properties)])

    def command(self) -> Sequence[str]:
        self._configure()
        return [*self._jvm(), "kafka.Kafka", str(self._properties)]

    def environment(self) -> Mapping[str, str]:
        return {name: value for name, value in os.environ.items() if name != "CLASSPATH"}

    def greet(self) -> None:
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 0})
        found = client.list_topics(timeout=5)
        if found.cluster_id != CLUSTER:
            raise ServerFailed(f"the cluster on our port is {found.cluster_id}")

    def close(self, failed: bool = False) -> Path | None:
        kept = super().close(failed)
        self.proxy.close()
        return kept

    @property
    def _properties(self) -> Path:
        return self.dir / "server.properties"

    def _configure(self) -> None:
        settings = self._template.format(
            at="127.0.0.1",
            port=self.port or free_port(),
            behind=self._behind,
            proxy=self.proxy.port,
            locked=self._locked,
            controller=self._controller,
            plain="org.apache.kafka.common.security.plain.PlainLoginModule",
            password=PASSWORD,
            data=self.dir / "data",
            partitions=PARTITIONS,
        )
        self._properties.write_text(settings)

    def _jvm(self) -> list[str]:
        memory = ["-Xms128m", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [self._java, *memory, log, "-cp", f"{self._jars}/*"]


def kafka(properties: str = "") -> Kafka:
    """``properties`` are added to those above, in their form, and win over them."""
    return Kafka(*find_kafka(), properties).start()


def find_kafka() -> tuple[str, Path]:
    """Return the path of Java and the folder of Kafka's jars."""
    jars, java = ROOT / ".servers" / ("kafka-next" if wants_next() else "kafka"), shutil.which("java")
    if java is None or not (jars / ".complete").exists():
        raise Missing("Kafka", "make servers", "EFFECTONCE_TEST_KAFKA_URL")
    return java, jars
