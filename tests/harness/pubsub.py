"""Google's stand-in for Pub/Sub, `pstest`, which its own client libraries are tested with: a Go package of theirs in a
program of ours (`pubsub.go`).

    with pubsub.pstest() as server: connect_broker(server.url)

It keeps messages in memory, for ten minutes. It confirms stale acks of every subscription, also of those with
exactly-once delivery, and all groups of a topic share its counts of deliveries; the service does neither.
"""

import socket
from collections.abc import Sequence
from pathlib import Path

from tests.harness.installed import ROOT, Missing
from tests.harness.process import Server


class PSTest(Server):
    name = "pubsub"

    def __init__(self, binary: Path) -> None:
        super().__init__()
        self._binary = binary

    @property
    def url(self) -> str:
        return f"pubsub://test-project?endpoint=http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        return [str(self._binary), "-port", str(self.port)]

    def greet(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), timeout=5).close()


def pstest() -> PSTest:
    folder = ROOT / ".servers" / "pubsub"
    if not (folder / ".complete").exists():
        raise Missing("pstest", "make servers (it needs Go)", "EFFECTONCE_TEST_PUBSUB_URL")
    return PSTest(folder / "pubsub-server").start()
