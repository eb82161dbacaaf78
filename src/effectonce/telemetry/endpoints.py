"""/metrics, /healthz and /readyz of a worker or a relay, served by threads of their own.

/healthz is 200 while the event loop comes round at all: 503 means that a restart would help. /readyz is 200 while it
consumes (or relays), its store and its broker answer, and it is not draining; otherwise 503, with the reasons.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

from effectonce.errors import ConfigurationError, show
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .cached_probe import Reading, ask, in_loop, refresh
from .prometheus import Metrics

log = logging.getLogger("effectonce")

#: Seconds without a turn of the event loop after which it counts as stuck for good.
STUCK: Final = 60.0
#: Seconds that a probe waits for those it asks.
PATIENCE: Final = 2.0
#: Seconds for which an answer of the store or the broker is good enough for the next probe.
KEEP: Final = 5.0

#: Requests at once; those beyond are hung up on.
MOST: Final = 20

TEXT: Final = "text/plain; charset=utf-8"


class Endpoints:
    """Serves ``watched`` at ``listen`` ("127.0.0.1:9464") from `__enter__`, in its event loop, to `__exit__`."""

    def __init__(self, watched: Worker | Relay, listen: str) -> None:
        self._watched = watched
        self._place = parse(listen)
        self._metrics = Metrics().watch(watched)
        self._loop = asyncio.get_running_loop()
        self._turned = time.monotonic()
        self._readings = list(self._checks())

    def __enter__(self) -> Endpoints:
        try:
            self._server = _Server(self._place, _Request)
        except OSError as error:
            raise ConfigurationError(
                f"listen={'{}:{}'.format(*self._place)}: {error.strerror or error}; give another address, or none"
            ) from error
        self._server.endpoints = self
        run = self._server.serve_forever
        threading.Thread(target=run, args=(0.2,), name="effectonce endpoints", daemon=True).start()
        host, port = self._server.server_address[:2]
        self._watched.listen = f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"
        log.info("metrics and health are at http://%s/metrics, /healthz and /readyz", self._watched.listen)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _checks(self) -> Any:
        watched = self._watched
        if (store := watched.store) is not None:
            yield Reading("store", lambda: _answers(store), KEEP)
        if isinstance(watched, Worker):
            yield Reading("broker", lambda: in_loop(self._loop, self._check_queues, 2 * PATIENCE), KEEP)

    async def _check_queues(self) -> bool:
        assert isinstance(self._watched, Worker)
        for queue in self._watched.queues:
            await self._watched.broker.backend.check(queue, group=self._watched.name)
        return True

    # -- answers

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body."""
        if path == "/metrics":
            return 200, self._metrics.content_type, self._metrics.text()
        if path in ("/healthz", "/readyz"):
            wrong = self.illness() if path == "/healthz" else self.hindrances()
            return 503 if wrong else 200, TEXT, "".join(f"{each}\n" for each in wrong or ["ok"]).encode()
        return 404, TEXT, b"there are /metrics, /healthz and /readyz\n"

    def illness(self) -> list[str]:
        """Why a restart would help; [] where it would not."""
        if self._turn(PATIENCE / 2):
            return []
        silent = time.monotonic() - self._turned
        return [f"the event loop has not come round for {silent:.0f} s"] if silent > STUCK else []

    def hindrances(self) -> list[str]:
        """Why it does no work now."""
        phase = self._watched.phase
        wrong = [] if phase == "running" else [f"it is {phase}"]
        if not self._turn(PATIENCE / 2):
            wrong.append("the event loop does not come round: a handler blocks it (make it a plain `def`)")
            return wrong
        wrong += [
            f"the {reading.what} does not answer: {show(reading.error or 'no reply in time', 300)}"
            for reading in refresh(self._readings, PATIENCE)
            if reading.value is None
        ]
        if isinstance(self._watched, Relay) and self._watched.outage is not None:
            wrong.append(f"the broker is away: {show(self._watched.outage, 300)}")
        return wrong

    def _turn(self, patience: float) -> bool:
        """Whether the event loop comes round within ``patience`` seconds."""
        came = threading.Event()
        try:
            self._loop.call_soon_threadsafe(came.set)
        except RuntimeError:  # it is closed
            return False
        if came.wait(patience):
            self._turned = time.monotonic()
        return came.is_set()


def _answers(store: Store) -> int:
    return ask(store, lambda port: port.now())


def parse(listen: str) -> tuple[str, int]:
    """Host and port of "127.0.0.1:9464", "[::1]:9464" or ":9464"; without a host it is this machine only."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"listen={show(listen)!r} is no address; write 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


class _Server(ThreadingHTTPServer):
    endpoints: Endpoints
    daemon_threads = True

    def __init__(self, place: tuple[str, int], handler: Any) -> None:
        if ":" in place[0]:
            self.address_family = socket.AF_INET6  # which `socketserver` does not find out by itself
        self._room = threading.BoundedSemaphore(MOST)
        super().__init__(place, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is nothing to write about."""


class _Request(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "effectonce", ""
    timeout = 5  # of a client that sends nothing

    def do_GET(self) -> None:
        try:
            status, kind, body = self.server.endpoints.answer(self.path.partition("?")[0])
        except Exception:  # of a collector in the same registry, for example
            log.exception("%s could not be answered", show(self.path))
            status, kind, body = 500, TEXT, b"it failed; the log says why\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds: none is logged."""
