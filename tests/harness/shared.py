"""One server of each kind for all test processes of a run.

The process that controls the run owns the servers: it starts one when a test first asks for it, and ends all of them
at the end of the run, even if test processes have died. Test processes ask it over a socket. Without pytest-xdist the
controlling process runs the tests itself and uses its registry directly.

    servers = ServerRegistry(); servers.url("redis")        # in the controlling process
    address = servers.listen(); ask(address, "redis")       # in a test process
"""

import fcntl
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Final, Protocol

from tests.harness import installed, servers
from tests.harness.kafka import kafka
from tests.harness.nats import nats
from tests.harness.process import ServerFailed
from tests.harness.pubsub import pstest
from tests.harness.rabbitmq import rabbitmq
from tests.harness.redis_cluster import redis_cluster
from tests.harness.sqs import elasticmq, ministack


class Running(Protocol):
    @property
    def url(self) -> str: ...

    def close(self) -> object: ...


#: How each kind is started. What follows a blank in a name is the argument: `pgbouncer postgresql://…`.
STARTERS: Final[dict[str, Callable[..., Running]]] = {
    "redis": lambda: servers.redis("--databases", "64"),  # one per test process
    "redis_cluster": redis_cluster,
    "valkey": lambda: servers.valkey("--databases", "64"),
    "postgres": lambda: servers.postgres(durable=True),  # `check` refuses fsync=off
    "pgbouncer": servers.pgbouncer,
    "mariadb": servers.mariadb,
    "dynamodb": servers.dynamodb,
    "rabbitmq": rabbitmq,
    "nats": nats,
    "kafka": kafka,
    "elasticmq": elasticmq,
    "ministack": ministack,
    "pubsub": pstest,
}


class ServerRegistry:
    """The servers of one run. Each is started once, for the first test that asks; others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starting: dict[str, threading.Lock] = {}
        self._running: dict[str, Running] = {}
        self._missing: dict[str, str] = {}
        self._folder: Path | None = None
        self._listener: Listener | None = None

    def url(self, name: str) -> str:
        """The address of the server called ``name``. Raises `Missing` where it is not installed."""
        with self._lock:
            starting = self._starting.setdefault(name, threading.Lock())
        with starting:
            if name in self._missing:
                raise installed.Missing.because(self._missing[name])
            if name not in self._running:
                kind, *arguments = name.split(" ")
                try:
                    self._running[name] = STARTERS[kind](*arguments)
                except installed.Missing as missing:
                    self._missing[name] = str(missing)
                    raise
            return self._running[name].url

    def listen(self) -> str:
        """Answer other processes, until `close`. Returns the address to give to `ask`."""
        if self._listener is None:
            self._folder = Path(tempfile.mkdtemp(prefix="eo-run-"))
            self._listener = Listener(str(self._folder / "servers"))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return str(self._listener.address)

    def close(self) -> None:
        """End every server."""
        if self._listener is not None:
            self._listener.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        for server in reversed(self._running.values()):
            server.close()
        self._running.clear()

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                connection = listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: "Connection[Any, Any]") -> None:
        with connection:
            try:
                name = connection.recv()
                try:
                    answer = ("url", self.url(name))
                except installed.Missing as missing:
                    answer = ("missing", str(missing))
                except Exception as error:  # the test that asked is to fail with it
                    answer = ("failed", f"{error}")
                connection.send(answer)
            except (EOFError, OSError):  # the test process is gone
                return


@contextmanager
def one_at_a_time(address: str) -> Iterator[None]:
    """Let only one test process at a time into the block, of all that use the registry at ``address``."""
    with (Path(address).parent / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ask(address: str, name: str) -> str:
    """`ServerRegistry.url` of the registry that listens at ``address``."""
    with Client(address) as connection:
        connection.send(name)
        kind, text = connection.recv()
    if kind == "missing":
        raise installed.Missing.because(text)
    if kind == "failed":
        raise ServerFailed(text)
    return str(text)
