"""The ASGI middleware beside the bare application and its peers, under uvicorn with 50 connections.

asgi-idempotency-header pins a FastAPI of 2021, so it is in no extra: install it on its own
(``pip install --no-deps --target DIR asgi-idempotency-header``) and name the folder in ``ASGI_IDEMPOTENCY_HEADER``;
without that its lines are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator

from tests.harness import servers
from tests.harness.web import Web, web

from .measure import Case, Table

CONNECTIONS = 50
BODY = b'{"order": "4711", "amount": 4200, "currency": "eur"}'
HEAD = (
    b"POST /charges HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: load\r\nAccept: */*\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(BODY)
)

_serial = itertools.count()


def request(key: str | None) -> bytes:
    line = b"" if key is None else b"Idempotency-Key: %b\r\n" % key.encode()
    return HEAD + line + b"\r\n" + BODY


class Connection(asyncio.Protocol):
    """Sends a request, reads its response, sends the next; keeps how long each took that was answered with 201.

    ``strict``: any other answer is an error. Peers may refuse under load: what they refuse takes its time and counts
    for nothing, and the table says how much it was.
    """

    def __init__(self, requests: Iterator[bytes], times: list[float], strict: bool) -> None:
        self._requests = requests
        self._times = times
        self._strict = strict
        self._buffer = b""
        self._sent_at = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def _next(self) -> None:
        message = next(self._requests, None)
        if message is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(message)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if not (len(body) == int(length) if length else body.endswith(b"0\r\n\r\n")):
            return
        if head.startswith(b"HTTP/1.1 201"):
            self._times.append(time.perf_counter() - self._sent_at)
        elif self._strict:
            self.done.set_exception(RuntimeError(self._buffer.decode("latin-1")))
            self._transport.close()
            return
        self._buffer = b""
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("closed"))


async def load(port: int, requests: list[bytes], strict: bool) -> tuple[float, float, int]:
    """Requests a second, the 99th percentile of their times in milliseconds, and how many were refused: these are left
    out of both."""
    times: list[float] = []
    rest = iter(requests)
    started = time.perf_counter()
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Connection(rest, times, strict), "127.0.0.1", port)
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(connection.done for _, connection in made))
    if not times:
        raise RuntimeError(f"all of {len(requests)} requests were refused")
    rate = len(times) / (time.perf_counter() - started)
    return rate, sorted(times)[int(len(times) * 0.99)] * 1000, len(requests) - len(times)


def fresh(count: int) -> list[bytes]:
    serial = next(_serial)
    return [request(f"pay-{os.getpid()}-{serial}-{number}") for number in range(count)]


def one_key(count: int) -> list[bytes]:
    """Replays of a few hundred operations, all of them done before."""
    return [request(f"replayed-{number % 200}") for number in range(count)]


def keyless(count: int) -> list[bytes]:
    return [request(None)] * count


class Measured:
    """The applications of one table, each in a process of its own; the times of a round are kept for a second table."""

    def __init__(self, stack: contextlib.ExitStack, store: str) -> None:
        self._stack = stack
        self._store = store
        self._slowest: dict[tuple[str, int], float] = {}
        self._refused: dict[str, list[float]] = {}
        self.noted: list[Table] = []  # the tables whose note tells what was refused

    def rate(
        self, name: str, requests: Callable[[int], list[bytes]], count: int, label: str = ""
    ) -> Callable[[int], float]:
        folder = os.environ.get("ASGI_IDEMPOTENCY_HEADER", "")
        served: Web = self._stack.enter_context(
            web("-m", "benchmarks.http_apps", name, "{port}", self._store, variables={"PYTHONPATH": folder})
        )
        if requests is one_key:
            asyncio.run(load(served.port, one_key(200), name not in TARGETS))

        def measure(number: int) -> float:
            rate, slowest, refused = asyncio.run(load(served.port, requests(count), name not in TARGETS))
            self._slowest[label or name, number] = slowest
            if name in TARGETS:
                self._refused.setdefault(name, []).append(refused / count)
            for table in self.noted:
                table.note = self._note()
            return rate

        return measure

    def _note(self) -> str:
        shares = (f"{name} {max(values):.1%}" for name, values in self._refused.items())
        left_out = f"; answers other than 201 are left out, in the worst round of {', '.join(shares)}"
        return f"{CONNECTIONS} connections{left_out if self._refused else ''}"

    def slowest(self, name: str) -> Callable[[int], float]:
        return lambda number: self._slowest[name, number]


def peers() -> list[str]:
    return ["idemkit", *(["asgi_idempotency_header"] if os.environ.get("ASGI_IDEMPOTENCY_HEADER") else [])]


TARGETS = {"idemkit": 1.5, "asgi_idempotency_header": 2.0}


def tables(store: str, name: str, scale: float) -> Iterator[Table]:
    count = max(500, int(4000 * scale))
    if store.startswith("memory"):
        count = min(count, 1200)  # in all rounds together: idemkit's memory takes 10,000 keys, then refuses
    with contextlib.ExitStack() as stack:
        measured = Measured(stack, store)
        yield Table(
            f"HTTP, {name}, requests without a key",
            "requests a second",
            "more",
            [
                Case("the bare application", measured.rate("bare", keyless, count)),
                Case("effectonce", measured.rate("ours", keyless, count), {"the bare application": 0.9}, ours=True),
            ],
            rounds=7,
        )
    with contextlib.ExitStack() as stack:
        measured = Measured(stack, store)
        rivals = [Case(peer, measured.rate(peer, fresh, count // 2)) for peer in peers()]
        targets = {peer: TARGETS[peer] for peer in peers()} if name == "Redis" else {}
        keyed = Table(
            f"HTTP, {name}, a new key each",
            "requests a second",
            "more",
            [*rivals, Case("effectonce", measured.rate("ours", fresh, count // 2), targets, ours=True)],
            rounds=7,
        )
        measured.noted.append(keyed)
        yield keyed
        yield Table(
            f"HTTP, {name}, a new key each, 99th percentile",
            "ms",
            "less",
            [
                *(Case(peer, measured.slowest(peer)) for peer in peers()),
                Case("effectonce", measured.slowest("ours"), dict.fromkeys(targets, 1.0), ours=True),
            ],
            keyed.note,
            rounds=7,
        )
    with contextlib.ExitStack() as stack:
        measured = Measured(stack, store)
        replays = Table(
            f"HTTP, {name}, replays",
            "requests a second",
            "more",
            [
                Case("a plain cached response", measured.rate("cached", one_key, count)),
                Case("effectonce", measured.rate("ours", one_key, count), {"a plain cached response": 0.7}, ours=True),
                *(Case(peer, measured.rate(peer, one_key, count)) for peer in peers()),
            ],
            rounds=7,
        )
        measured.noted.append(replays)
        yield replays


def memory(scale: float) -> Iterator[Table]:
    yield from tables("memory://", "memory", scale)


def redis(scale: float) -> Iterator[Table]:
    with servers.redis() as server:
        yield from tables(server.url, "Redis", scale)


PARTS: dict[str, Callable[[float], Iterator[Table]]] = {"memory": memory, "redis": redis}
