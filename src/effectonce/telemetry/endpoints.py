"""/metrics, /healthz and /readyz of the workers and relays of one event loop, served by threads of their own.

/healthz is 200 while the event loop runs its callbacks: 503 means that a restart would help. /readyz is 200 while each
worker consumes and each relay relays, their stores and brokers answer, and none is draining; otherwise 503 with the
reasons.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from effectonce.errors import ConfigurationError, show
from effectonce.relay.relay import Relay
from effectonce.worker.worker import Worker

from .cached_probe import CachedProbe, query_store, refresh, run_in_loop
from .prometheus import Metrics

log = logging.getLogger("effectonce")

#: The event loop counts as stuck when it has run no callback for this long.
LOOP_STUCK_S: Final = 60.0
#: How long a request waits for the event loop to run a callback.
LOOP_TIMEOUT_S: Final = 1.0
#: How long a request waits for the store and the broker.
PROBE_TIMEOUT_S: Final = 2.0
#: How long a check of the broker may take, whose answer then serves the next request.
BROKER_CHECK_TIMEOUT_S: Final = 4.0
#: How long an answer of the store or the broker is reused.
PROBE_MAX_AGE_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 5
SERVER_POLL_S: Final = 0.2
#: Connections beyond these are closed at once.
MAX_REQUESTS: Final = 20

TEXT_CONTENT_TYPE: Final = "text/plain; charset=utf-8"


class Endpoints:
    """Serves ``watched`` at ``listen`` ("127.0.0.1:9464") from `__enter__`, in its event loop, to `__exit__`.

    The workers and relays among its ``companions`` are served with it.
    """

    def __init__(self, watched: Worker | Relay, listen: str, companions: Sequence[object] = ()) -> None:
        self._watched = watched
        self._programs = [watched, *(other for other in companions if isinstance(other, Worker | Relay))]
        self._address = parse_address(listen)
        self._metrics = Metrics().watch(*self._programs)
        self._loop = asyncio.get_running_loop()
        self._loop_answered_at = time.monotonic()
        self._probes = list(self._make_probes())

    def __enter__(self) -> Endpoints:
        try:
            self._server = _Server(self._address, _Request)
        except OSError as error:
            raise ConfigurationError(
                f"listen={'{}:{}'.format(*self._address)}: {error.strerror or error}; give another address, or none"
            ) from error
        self._server.endpoints = self
        run = self._server.serve_forever
        threading.Thread(target=run, args=(SERVER_POLL_S,), name="effectonce endpoints", daemon=True).start()
        host, port = self._server.server_address[:2]
        self._watched.listen = f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"
        log.info("metrics and health are at http://%s/metrics, /healthz and /readyz", self._watched.listen)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _make_probes(self) -> Iterator[CachedProbe[Any]]:
        for store in {program.store for program in self._programs if program.store is not None}:
            yield CachedProbe("store", partial(query_store, store, lambda port: port.now()), PROBE_MAX_AGE_S)
        for program in self._programs:
            if isinstance(program, Worker):
                check = partial(_check_queues, program)
                probe = partial(run_in_loop, self._loop, check, BROKER_CHECK_TIMEOUT_S)
                yield CachedProbe("broker", probe, PROBE_MAX_AGE_S)

    # -- answers

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return the status, content type and body of a response."""
        if path == "/metrics":
            return 200, self._metrics.content_type, self._metrics.text()
        if path in ("/healthz", "/readyz"):
            problems = self.health_problems() if path == "/healthz" else self.readiness_problems()
            return (
                503 if problems else 200,
                TEXT_CONTENT_TYPE,
                "".join(f"{line}\n" for line in problems or ["ok"]).encode(),
            )
        return 404, TEXT_CONTENT_TYPE, b"there are /metrics, /healthz and /readyz\n"

    def health_problems(self) -> list[str]:
        """Return why a restart would help; [] where it would not."""
        if self._loop_answers(LOOP_TIMEOUT_S):
            return []
        silent = time.monotonic() - self._loop_answered_at
        return [f"the event loop has not run for {silent:.0f} s"] if silent > LOOP_STUCK_S else []

    def readiness_problems(self) -> list[str]:
        """Return why no work is done now; [] where it is."""
        phases = [program.phase for program in self._programs if program.phase != "running"]
        problems = [f"it is {phase}" for phase in dict.fromkeys(phases)]
        if not self._loop_answers(LOOP_TIMEOUT_S):
            problems.append("the event loop does not run: a handler blocks it (make it a plain `def`)")
            return problems
        refresh(self._probes, PROBE_TIMEOUT_S)
        problems += [
            f"the {probe.what} does not answer: {show(probe.error or 'no reply in time', 300)}"
            for probe in self._probes
            if probe.value is None
        ]
        outages = [program.outage for program in self._programs if isinstance(program, Relay)]
        return problems + [f"the broker is away: {show(outage, 300)}" for outage in outages if outage is not None]

    def _loop_answers(self, timeout: float) -> bool:
        """Tell whether the event loop runs a callback within ``timeout`` seconds."""
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # it is closed
            return False
        if answered.wait(timeout):
            self._loop_answered_at = time.monotonic()
        return answered.is_set()


async def _check_queues(worker: Worker) -> bool:
    for queue in worker.queues:
        await worker.broker.backend.check(queue, group=worker.name)
    return True


def parse_address(listen: str) -> tuple[str, int]:
    """Split "127.0.0.1:9464", "[::1]:9464" or ":9464" into host and port. Without a host it is this machine only."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"listen={show(listen)!r} is not an address; write 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


class _Server(ThreadingHTTPServer):
    endpoints: Endpoints
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6  # `socketserver` does not derive it from the address
        self._slots = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a client may disconnect at any time."""


class _Request(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "effectonce", ""
    timeout = REQUEST_TIMEOUT_S  # for a client that sends nothing

    def do_GET(self) -> None:
        try:
            status, kind, body = self.server.endpoints.answer(self.path.partition("?")[0])
        except Exception:  # another collector in the same registry may fail
            log.exception("%s could not be answered", show(self.path))
            status, kind, body = 500, TEXT_CONTENT_TYPE, b"the request failed; see the log of the worker\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes come every few seconds."""
