"""A server process of the tests: started on a free port, ready when *it* answers, ended by PID."""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from tests.harness import reaper
from tests.harness.installed import ROOT, enter_root

KEPT_LOGS = ROOT / ".servers" / "logs"
START_SECONDS = 60.0
STOP_SECONDS = 15.0

keep_logs = False  # set by conftest once a test has failed


class ServerFailed(Exception):
    """A server that is installed did not start; the message ends with its log, which is kept at `log`."""

    log: Path | None = None


def free_port(row: int = 1) -> int:
    """Return a port on which no process listens, below the range that the kernel uses for outgoing connections. With
    ``row`` it is the first of so many free ones.

    Port + 10000 is free too: a Redis Cluster node listens there. Another process may still be quicker than
    ours, which is why starting a server is retried.
    """
    while True:
        port = random.randrange(11_000, 22_000 - row)
        ports = range(port, port + row)
        if _assigned.isdisjoint(ports) and all(map(_bindable, (*ports, port + 10_000))):
            _assigned.update(ports)
            return port


_assigned: set[int] = set()  # a server that asks for several ports before it listens on them gets different ones


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class Server:
    """A running server. Subclasses say how it is prepared, started and greeted.

    `kill()` is a power cut, `stop()` a freeze (`resume()` ends it), `restart()` brings the same data back
    on the same port. Leaving the `with` block ends the server and removes its directory.
    """

    name = "server"
    stop_signal = signal.SIGTERM  # of a restart
    close_signal = signal.SIGKILL  # its data is not needed again, and an orderly end takes some servers many seconds

    def __init__(self) -> None:
        self.port = 0
        self.dir = Path(tempfile.mkdtemp(prefix=f"eo-{self.name}-"))
        self.log = self.dir / "log"
        self._process: subprocess.Popen[bytes] | None = None

    # What a subclass defines

    @property
    def url(self) -> str:
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare the data directory. Called once, before the first start."""

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def greet(self) -> None:
        """Raise unless the server on the port answers, and is this one. Called until it does not raise."""

    def after_start(self) -> None:
        """Create databases and users. Called once, after the first start."""

    # What every server does

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        try:
            self.prepare()
            for attempt in range(5):
                self.port = free_port()
                try:
                    self._launch()
                    break
                except ServerFailed:
                    if attempt == 4 or not self._lost_the_port():
                        raise
            self.after_start()
        except BaseException as error:
            kept = self.close(failed=True)
            if isinstance(error, ServerFailed):
                error.log = kept
            raise
        return self

    def restart(self) -> None:
        self._terminate(self.stop_signal)
        self._launch()

    def kill(self) -> None:
        if self._process is not None and self.alive:
            reaper.kill_tree(psutil.Process(self.pid))
            self._reap()

    def stop(self) -> None:
        self._signal_tree(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_tree(signal.SIGCONT)

    def close(self, failed: bool = False) -> Path | None:
        """End the server and remove its directory. After a failure, keep the log and return its path."""
        self._terminate(self.close_signal)
        kept = None
        if (failed or keep_logs) and self.log.exists():
            KEPT_LOGS.mkdir(parents=True, exist_ok=True)
            kept = Path(shutil.copy(self.log, KEPT_LOGS / f"{self.dir.name}.log"))
        shutil.rmtree(self.dir, ignore_errors=True)
        return kept

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def run(self, command: Sequence[str]) -> None:
        """Run a command that has to succeed before the server can start. Its output goes to the server's log."""
        with self.log.open("ab") as out:
            done = subprocess.run(enter_root(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.dir)
        if done.returncode:
            raise ServerFailed(f"{command[0]} exited with {done.returncode}:\n{self.log_tail()}")

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def _launch(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                enter_root(self.command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.dir,
                env=dict(self.environment()),
                start_new_session=True,
            )
        reaper.watch(self.pid, self.dir)
        try:
            self._wait_until_ours_answers()
        except BaseException:
            self.kill()
            raise

    def _wait_until_ours_answers(self) -> None:
        problem = "it never listened on its port"
        deadline = time.monotonic() + START_SECONDS
        pause = 0.005
        while time.monotonic() < deadline:
            if not self.alive:
                raise ServerFailed(f"{self.name} exited at once:\n{self.log_tail()}")
            if self._listens():
                try:
                    return self.greet()
                except Exception as error:  # any driver's "not yet"
                    problem = repr(error)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        raise ServerFailed(f"{self.name} is not ready after {START_SECONDS:.0f} s: {problem}\n{self.log_tail()}")

    def _listens(self) -> bool:
        """Whether our own child holds the port; an open port alone may be another server's."""
        try:
            connections = psutil.Process(self.pid).net_connections("tcp")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False
        return any(c.status == psutil.CONN_LISTEN and c.laddr.port == self.port for c in connections)

    def _lost_the_port(self) -> bool:
        tail = self.log_tail().lower()
        return any(words in tail for words in ("already in use", "could not bind", "can't bind", "cannot bind"))

    def _signal_tree(self, number: signal.Signals) -> None:
        root = psutil.Process(self.pid)
        for process in (root, *root.children(recursive=True)):
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:  # PostgreSQL's children come and go
                pass

    def _terminate(self, how: signal.Signals) -> None:
        if self._process is None or not self.alive:
            self._reap()
            return
        if how != signal.SIGKILL:
            self.resume()  # a frozen process does not hear a signal to end
            self._process.send_signal(how)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        self.kill()
        self._reap()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait(STOP_SECONDS)
            reaper.unwatch(self.pid)
