"""Two servers that speak SQS, each with deviations of its own: ElasticMQ (Java) and MiniStack (Python).

    with sqs.elasticmq() as server: connect_broker(server.url)

They require credentials, and accept any.
"""

import os
import shutil
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness.installed import ROOT, Missing
from tests.harness.process import Server


class SQS(Server):
    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"sqs://?region=us-east-1&endpoint={self.endpoint}"


class ElasticMQ(SQS):
    name = "elasticmq"

    def __init__(self, java: str, jars: Path) -> None:
        super().__init__()
        self._java = java
        self._jars = jars

    def command(self) -> Sequence[str]:
        here = [f"-Drest-sqs.bind-port={self.port}", "-Drest-sqs.bind-hostname=127.0.0.1", "-Drest-stats.enabled=false"]
        named = ["-Dnode-address.host=127.0.0.1", f"-Dnode-address.port={self.port}"]
        jvm = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        return [self._java, *jvm, *here, *named, "-cp", f"{self._jars}/*", "org.elasticmq.server.Main"]

    def greet(self) -> None:
        urllib.request.urlopen(f"{self.endpoint}/?Action=ListQueues", timeout=5).close()


class MiniStack(SQS):
    name = "ministack"

    def __init__(self, binary: Path) -> None:
        super().__init__()
        self._binary = binary

    def command(self) -> Sequence[str]:
        return [str(self._binary)]

    def environment(self) -> Mapping[str, str]:
        here = {"BIND_HOST": "127.0.0.1", "MINISTACK_HOST": "127.0.0.1", "GATEWAY_PORT": str(self.port)}
        return {**os.environ, **here, "SERVICES": "sqs", "LOG_LEVEL": "WARNING"}

    def greet(self) -> None:
        urllib.request.urlopen(f"{self.endpoint}/?Action=ListQueues", timeout=5).close()


def elasticmq() -> ElasticMQ:
    jars, java = ROOT / ".servers" / "elasticmq", shutil.which("java")
    if java is None or not (jars / ".complete").exists():
        raise Missing("ElasticMQ", "make servers", "EFFECTONCE_TEST_SQS_URL")
    return ElasticMQ(java, jars).start()


def ministack() -> MiniStack:
    folder = ROOT / ".servers" / "ministack"
    if not (folder / ".complete").exists():
        raise Missing("MiniStack", "make servers", "EFFECTONCE_TEST_SQS_URL")
    return MiniStack(folder / "bin" / "ministack").start()
