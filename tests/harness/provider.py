"""A payment provider on loopback that behaves as Stripe's v1 API does, and fails on demand.

    with Provider() as provider:
        httpx.post(f"{provider.url}/charges", headers={"Idempotency-Key": key}, json={"order": "o1", "amount": 4200})
        provider.charges          # what was really charged, in order
        provider.next("drop")     # the next request is executed, and its answer never arrives

``drop``, ``reset`` and ``hang`` execute it and lose the answer: by a plain end, by a reset, or not before ``release``
is set. ``slow`` executes it when ``release`` is set, and its key is in use until then. ``invalid`` is turned away
before its key is looked at. ``/mails`` takes no keys.

A key is kept for ``window`` seconds. Once execution has begun, its answer is replayed under its key, a 500 too. Another
body under a key is 400 ``idempotency_error``; a key in use is 409 ``idempotency_key_in_use``; 429 and 401 come before
the keys are looked at.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

Fault = Literal["drop", "reset", "hang", "slow", "500", "429", "401", "invalid", "decline"]


class Provider:
    def __init__(self, window: float = 86_400.0) -> None:
        self.window = window
        self.charges: list[dict[str, Any]] = []
        self.refunds: list[dict[str, Any]] = []
        self.mails: list[dict[str, Any]] = []
        self.done = {
            "/charges": self.charges,
            "/refunds": self.refunds,
            "/mails": self.mails,
        }  # other paths are added when they are asked
        self.requests: list[tuple[str, str]] = []  # (path, key) as they came in
        self.release = threading.Event()  # what a hanging or slow answer waits for
        self.begun = threading.Event()  # set when the execution of a slow one has begun
        self._faults: deque[Fault] = deque()
        self._answers: dict[str, tuple[float, bytes, tuple[int, dict[str, Any]] | None]] = {}
        self._lock = threading.Lock()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                if len(body) < length:  # the client was killed while it sent the request
                    self.close_connection = True
                    return
                provider.answer(self, self.path, self.headers.get("Idempotency-Key", ""), body)

            def do_GET(self) -> None:
                order = self.path.rpartition("/")[2]
                found = [charge for charge in provider.charges if charge["order"] == order]
                provider.send(self, 200, {"data": found})

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients are killed on purpose
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)  # s to a shutdown

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def next(self, *faults: Fault) -> None:
        """Let the next requests fail like this, one each."""
        self._faults.extend(faults)

    def forget(self) -> None:
        """End the window of every key."""
        self._answers.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()

    # -- one request

    def answer(self, handler: BaseHTTPRequestHandler, path: str, key: str, body: bytes) -> None:
        if path == "/mails":
            key = ""
        with self._lock:
            self.requests.append((path, key))
            fault = self._faults.popleft() if self._faults else None
            if fault in ("429", "401"):
                return self.send(handler, int(fault), {"error": {"type": "rate_limit_error"}})
            if fault == "invalid":
                return self.send(handler, 400, {"error": {"type": "invalid_request_error"}})
            kept = self._answers.get(key)
            if kept is not None and kept[0] > time.monotonic():
                if kept[1] != body:
                    return self.send(handler, 400, {"error": {"type": "idempotency_error"}})
                if kept[2] is None:
                    return self.send(handler, 409, {"error": {"code": "idempotency_key_in_use"}})
                return self._reply(handler, fault, *kept[2])
            if key:
                self._answers[key] = (time.monotonic() + self.window, body, None)
        if fault == "slow":
            self.begun.set()
            self.release.wait(60)
        with self._lock:
            answer = self._execute(path, body, fault)
            if key:
                self._answers[key] = (time.monotonic() + self.window, body, answer)
        return self._reply(handler, fault, *answer)

    def _execute(self, path: str, body: bytes, fault: Fault | None) -> tuple[int, dict[str, Any]]:
        if fault == "decline":
            return 402, {"error": {"type": "card_error", "code": "card_declined"}}
        if fault == "500":
            return 500, {"error": {"type": "api_error"}}
        done = self.done.setdefault(path, [])
        made = {"id": f"{path[1:3]}_{len(done) + 1}", **json.loads(body)}
        done.append(made)
        return 200, made

    def _reply(self, handler: BaseHTTPRequestHandler, fault: Fault | None, status: int, body: dict[str, Any]) -> None:
        if fault == "hang":
            self.release.wait(60)
        if fault in ("drop", "hang", "reset"):
            handler.close_connection = True
            if fault == "reset":
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            return
        self.send(handler, status, body)

    def send(self, handler: BaseHTTPRequestHandler, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        try:
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(raw)))
            handler.end_headers()
            handler.wfile.write(raw)
        except OSError:  # the client is gone
            handler.close_connection = True
