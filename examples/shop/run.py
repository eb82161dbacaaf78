"""The whole shop, until Ctrl-C: python run.py"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import orders
from settings import BROKER, DATABASE, LEASE, QUEUE
from worker import broker, worker

HERE = Path(__file__).parent


class Shop:
    """The processes of the shop, by their names, on ``port`` and the three after it. Leaving the ``with`` block ends
    them. ``lost``: the share of the provider's answers that get lost. ``output``: where they write; default: here."""

    def __init__(self, port: int, *, lost: float = 0.0, output: IO[str] | None = None) -> None:
        self.web, self.provider, self.dashboard, self.metrics = (f"127.0.0.1:{port + at}" for at in range(4))
        shown = "--worker worker:worker --intents payments:intents --saga fulfilment:saga"
        self._commands: Mapping[str, Sequence[str]] = {
            "provider": f"provider {port + 1} {lost}".split(),
            "web": f"uvicorn web:app --port {port} --log-level warning".split(),
            "relay": f"effectonce relay --lease {LEASE}".split(),
            "worker": f"effectonce run worker:worker --listen {self.metrics}".split(),
            "dashboard": f"effectonce dashboard --port {port + 2} {shown} --metrics http://{self.metrics}/metrics".split(),
        }
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
            "EFFECTONCE_STORE": DATABASE,
            "EFFECTONCE_BROKER": BROKER,
            "SHOP_PAYMENTS": f"http://{self.provider}",
        }
        self._output = output
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        self._running[name] = subprocess.Popen(
            [sys.executable, "-m", *self._commands[name]],
            env=self._environment,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,  # Ctrl-C is for us, and we end them one by one
        )

    def kill(self, name: str) -> None:
        """As a power cut does it: without a word."""
        self._running[name].kill()
        self._running[name].wait()

    def ended(self) -> str | None:
        """The name of a process that has ended by itself."""
        return next((name for name, process in self._running.items() if process.poll() is not None), None)

    def __enter__(self) -> "Shop":
        orders.migrate()
        broker.declare(QUEUE, group=worker.name)
        try:
            for name in self._commands:
                if name == "dashboard":  # last: it looks at the others
                    self._wait_for(self.provider, self.web, self.metrics)
                self.start(name)
            self._wait_for(self.dashboard)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_for(self, *addresses: str) -> None:
        while not all(map(answers, addresses)):
            if (name := self.ended()) is not None:
                raise SystemExit(f"{name} did not start: see what it said")
            time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def main() -> None:
    options = argparse.ArgumentParser(description="The whole shop, until Ctrl-C.")
    options.add_argument("--port", type=int, default=8000, help="of the web; the others listen on the three after it")
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    try:
        with Shop(options.parse_args().port) as shop:
            print(f"[shop] orders:    http://{shop.web}/orders, and http://{shop.web}/docs to try it")
            print(f"[shop] provider:  http://{shop.provider}")
            print(f"[shop] dashboard: http://{shop.dashboard}, with one of the tokens above")
            print("[shop] Ctrl-C ends all", flush=True)
            while (name := shop.ended()) is None:
                time.sleep(0.5)
            raise SystemExit(f"{name} has ended, and so do the others")
    except KeyboardInterrupt:
        print("[shop] closed")


if __name__ == "__main__":
    main()
