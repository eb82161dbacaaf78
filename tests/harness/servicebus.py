"""A peer that speaks AMQP 1.0 as Azure Service Bus is documented to; see `servicebus.js`.

The real service and its emulator need a container or an account. What passes here was tested with Microsoft's SDK, not
with the service.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from tests.harness.installed import ROOT, Missing
from tests.harness.process import Server

PASSWORD = "open/sesame="


class ServiceBusPeer(Server):
    name = "servicebus"

    def __init__(self, node: str, library: Path, lock: float, dedup: float) -> None:
        super().__init__()
        self._node = node
        self._library = library
        self._lock = lock
        self._dedup = dedup

    @property
    def url(self) -> str:
        return self.url_with(PASSWORD)

    def url_with(self, password: str) -> str:
        return (
            f"servicebus://Root:{quote(password, safe='')}@127.0.0.1:{self.port}?emulator=yes"
            f"&ack_window={self._lock:g}s&dedup_window={self._dedup:g}s"
        )

    def command(self) -> Sequence[str]:
        script = Path(__file__).with_suffix(".js")
        return [self._node, str(script), str(self.port), f"{self._lock:g}", f"{self._dedup:g}", PASSWORD]

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "NODE_PATH": str(self._library / "node_modules")}


def servicebus(*, lock: float = 1.0, dedup: float = 60.0) -> ServiceBusPeer:
    node, library = shutil.which("node"), ROOT / ".servers" / "rhea"
    if node is None or not (library / ".complete").exists():
        raise Missing("a peer for Azure Service Bus (rhea)", "make servers", "EFFECTONCE_TEST_SERVICEBUS_URL")
    return ServiceBusPeer(node, library, lock, dedup).start()
