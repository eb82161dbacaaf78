"""/metrics, /healthz and /readyz of real workers and relays, asked over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

import effectonce as eo
from effectonce.telemetry import endpoints
from effectonce.telemetry.endpoints import parse_address
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy
from tests.harness.waiting import until as wait_until
from tests.relay.harness import FakeBroker
from tests.worker.bench import Bench, paid, serving, until

from .scrape import Page, aget, get


@pytest.fixture(autouse=True)
def by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept between two probes, and nothing of other tests is in the default registry."""
    monkeypatch.setattr(endpoints, "PROBE_MAX_AGE_S", 0.0)
    monkeypatch.setattr(endpoints, "PROBE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(endpoints, "LOOP_TIMEOUT_S", 0.5)
    monkeypatch.setattr(prometheus_client, "REGISTRY", CollectorRegistry())


async def page(worker: eo.Worker | eo.Relay) -> Page:
    status, text = await aget(worker.listen or "", "/metrics")
    assert status == 200
    return Page(text)


async def test_a_workers_metrics_match_its_work(redis_url: str, unique_name: str) -> None:
    """Duplicates, replays, conflicts, doubt, lost leases, fenced writes, acks, delays and dead letters."""
    store, broker = eo.connect(redis_url, sweep_every=None), eo.connect_broker(redis_url)
    worker = eo.Worker(broker, store=store, name=unique_name, listen="127.0.0.1:0")
    may_continue, overtaken = asyncio.Event(), asyncio.Event()

    @worker.handler(unique_name, type="order.paid", scope=f"{unique_name}-paid")
    async def charge(message: eo.Message[dict[str, int]]) -> None: ...

    @worker.handler(unique_name, type="slow", scope=f"{unique_name}-slow")
    async def slow(message: eo.Message[dict[str, int]]) -> None:
        await may_continue.wait()

    @worker.handler(unique_name, type="doubtful", scope=f"{unique_name}-doubtful", on_error="doubt")
    async def doubtful(message: eo.Message[dict[str, int]]) -> None:
        raise RuntimeError("the outcome is unknown")

    @worker.handler(unique_name, type="zombie", scope=f"{unique_name}-zombie", retry=eo.Retry(first=0.01))
    async def zombie(message: eo.Message[dict[str, int]]) -> None:
        if not overtaken.is_set():
            await asyncio.to_thread(store.forget, f"{unique_name}-zombie", message.key)
            overtaken.set()

    async def counted(kind: str, scope: str) -> float:
        scraped = await page(worker)
        return scraped.value("effectonce_outcomes_total", kind=kind, scope=f"{unique_name}-{scope}")

    await broker.backend.declare(unique_name, group=unique_name)
    async with serving(worker):
        await until(lambda: worker.phase == "running")
        assert await aget(worker.listen or "", "/readyz") == (200, "ok\n")
        orders = [paid(number) for number in range(20)]
        await broker.apublish(unique_name, orders)
        await until(lambda: worker.consumers[0].settler.settled["acked"] == 20)
        await broker.apublish(unique_name, orders[:5])
        await until(lambda: worker.consumers[0].settler.settled["acked"] == 25)
        first = paid(type="slow", id="slow-1")
        await broker.apublish(unique_name, first)
        await until(lambda: worker.consumers[0].executor.pools[1].claimed_count == 1)
        with pytest.raises(eo.InProgress):
            async with eo.block(store, scope=f"{unique_name}-slow", key="slow-1") as block:
                assert block.first
        may_continue.set()
        await broker.apublish(unique_name, [paid(type="doubtful"), paid(type="unheard-of"), paid(type="zombie")])
        await until(lambda: worker.consumers[0].settler.settled["dead"] == 2)
        await until(lambda: worker.consumers[0].settler.settled["acked"] == 27)
        scraped = await page(worker)
        assert scraped.value("effectonce_deliveries_total", queue=unique_name, outcome="received") >= 29
        assert scraped.value("effectonce_deliveries_total", queue=unique_name, outcome="acked") == 27
        assert scraped.value("effectonce_deliveries_total", queue=unique_name, outcome="dead") == 2
        assert scraped.value("effectonce_deliveries_total", queue=unique_name, outcome="redelivered") == 1
        assert scraped.value("effectonce_dead_letters", queue=unique_name) == 2
        assert scraped.value("effectonce_in_hand", queue=unique_name) == 0
        assert scraped.value("effectonce_ready", what=f"worker {unique_name}") == 1
        assert await counted("completed", "paid") == 20
        assert await counted("replayed", "paid") == 5
        assert await counted("in_progress", "slow") == 1
        assert await counted("in_doubt", "doubtful") == 1
        assert await counted("dead_lettered", "doubtful") == 1
        assert await counted("fenced", "zombie") == 1
        assert await counted("completed", "zombie") == 1
        assert scraped.value("effectonce_records", state="in_doubt") >= 1
        assert scraped.value("effectonce_batch_size_count", kind="claims") > 0
        assert scraped.value("effectonce_claim_seconds_count", scope=f"{unique_name}-paid") == 20
    await broker.aclose()
    await store.aclose()


@pytest.mark.parametrize("batch", [False, True])
async def test_a_worker_in_transactions_counts_duplicates(batch: bool, tmp_path: Path) -> None:
    """It has no store, and tells all the same."""
    path = tmp_path / "shop.db"
    eo.connect(f"sqlite:///{path}").migrate()
    worker = eo.Worker(
        eo.connect_broker("memory://"),
        inbox=eo.Inbox(scope="billing"),
        connect=lambda: sqlite3.connect(path, timeout=10),
        name="w",
        listen="127.0.0.1:0",
    )

    @worker.handler("orders", type="order.paid", scope="orders", batch=batch)
    def handle(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None: ...

    @worker.handler("orders", type="broken", scope="broken", retry=eo.Retry(1))
    def fail(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        raise RuntimeError

    async with serving(worker):
        await until(lambda: worker.phase == "running")
        await worker.broker.apublish("orders", [paid(id=str(number)) for number in range(10)])
        await until(lambda: worker.consumers[0].settler.settled["acked"] == 10)
        await worker.broker.apublish("orders", [paid(id="3"), paid(type="broken")])
        await until(lambda: worker.consumers[0].settler.settled == {"acked": 11, "redelivered": 0, "dead": 1})
        scraped = await page(worker)
        assert scraped.value("effectonce_outcomes_total", scope="orders", kind="first") == 10
        assert scraped.value("effectonce_run_seconds_count", scope="orders", outcome="first") == 10
        assert scraped.value("effectonce_outcomes_total", scope="orders", kind="duplicate") == 1
        assert scraped.value("effectonce_outcomes_total", scope="broken", kind="released") == 1
        assert scraped.value("effectonce_outcomes_total", scope="broken", kind="dead_lettered") == 1
        assert await aget(worker.listen or "", "/readyz") == (200, "ok\n")


async def test_a_lost_lease_is_counted(tmp_path: Path) -> None:
    """F10: the heartbeat finds that another has taken over."""
    store = eo.connect(f"sqlite:///{tmp_path}/records.db", sweep_every=None)
    worker = eo.Worker(eo.connect_broker("memory://"), store=store, name="w", listen=":0", drain="5s")

    @worker.handler("orders", lease="300ms", scope="orders")
    async def handle(message: eo.Message[dict[str, int]]) -> None:
        await asyncio.to_thread(store.forget, "orders", message.key)
        await until(lambda: eo.current().lease_lost)

    async with serving(worker):
        await until(lambda: worker.phase == "running")
        await worker.broker.apublish("orders", paid())
        scraped = await page(worker)
        while scraped.value("effectonce_outcomes_total", kind="lease_lost") != 1:
            scraped = await page(worker)
    store.close()


async def test_a_worker_is_not_ready_while_its_store_is_away(redis_url: str, unique_name: str) -> None:
    """F36: alive, but not ready; a scrape still answers."""
    with FaultProxy(urlsplit(redis_url).port or 0) as proxy:
        store = eo.connect(f"{proxy.through(redis_url)}?timeout=300ms&connect_timeout=300ms", sweep_every=None)
        worker = eo.Worker(eo.connect_broker("memory://"), store=store, name=unique_name, listen=":0", drain="1s")

        @worker.handler("orders")
        async def handle(message: eo.Message[dict[str, int]]) -> None: ...

        async with serving(worker):
            await until(lambda: worker.phase == "running")
            address = worker.listen or ""
            assert (await aget(address, "/readyz"))[0] == 200
            proxy.blackhole = True
            status, text = await aget(address, "/readyz")
            assert status == 503
            assert text.startswith("the store does not answer")
            assert await aget(address, "/healthz") == (200, "ok\n")
            assert (await aget(address, "/metrics"))[0] == 200
            proxy.heal()
            assert (await aget(address, "/readyz"))[0] == 200
        await store.aclose()


async def test_a_worker_is_not_ready_while_it_drains_or_its_loop_is_blocked() -> None:
    bench = Bench()
    worker = bench.worker(listen="127.0.0.1:0")
    has_started, may_continue = asyncio.Event(), asyncio.Event()

    @worker.handler("orders")
    async def handle(message: eo.Message[dict[str, int]]) -> None:
        has_started.set()
        await may_continue.wait()

    serve = asyncio.create_task(worker.serve())
    await until(lambda: worker.phase == "running")
    address = worker.listen or ""
    status, text = get(address, "/readyz")  # which blocks the loop meanwhile, as a careless handler does
    assert status == 503
    assert "the event loop does not run" in text
    await bench.send("orders", paid())
    await has_started.wait()
    worker.stop()
    await until(lambda: worker.phase == "draining")
    assert await aget(address, "/readyz") == (503, "it is draining\n")
    assert await aget(address, "/healthz") == (200, "ok\n")
    may_continue.set()
    await serve
    with pytest.raises(OSError):
        await aget(address, "/healthz")


async def test_a_restart_is_asked_for_once_the_loop_has_been_blocked_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "LOOP_TIMEOUT_S", 0.05)
    worker = Bench().worker(listen="127.0.0.1:0")
    worker.handler("orders")(nothing)
    async with serving(worker):
        await until(lambda: worker.phase == "running")
        assert get(worker.listen or "", "/healthz") == (200, "ok\n"), "a handler blocks it, for a moment so far"
        monkeypatch.setattr(endpoints, "LOOP_STUCK_S", 0.01)
        status, text = get(worker.listen or "", "/healthz")
        assert (status, text) == (503, "the event loop has not run for 0 s\n")
        assert (await aget(worker.listen or "", "/healthz"))[0] == 200


async def test_only_these_three_pages_are_served_whatever_the_query() -> None:
    worker = Bench().worker(listen="127.0.0.1:0")
    worker.handler("orders")(nothing)
    async with serving(worker):
        await until(lambda: worker.phase == "running")
        assert await aget(worker.listen or "", "/") == (404, "there are /metrics, /healthz and /readyz\n")
        assert (await aget(worker.listen or "", "/healthz?verbose=1"))[0] == 200


async def test_a_relay_serves_its_outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    store, broker = eo.connect(url, sweep_every=None), eo.connect_broker("memory://")
    store.migrate()
    outbox = eo.Outbox(to="orders")
    refusing = True

    class Publisher:
        def __init__(self) -> None:
            self._inner = type(broker.backend).publisher(broker.backend)

        async def publish(self, queue: str, packets: list[eo.Message[int]]) -> list[Exception | None]:
            errors = await self._inner.publish(queue, packets)  # type: ignore[arg-type]
            return [
                ValueError("not this one") if refusing and packet.id == "bad" else None for packet in packets
            ] or list(errors)

        async def close(self) -> None:
            await self._inner.close()

    monkeypatch.setattr(broker.backend, "publisher", Publisher)
    relay = eo.Relay(store, broker, listen="127.0.0.1:0", retry=eo.Retry(1))
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("BEGIN")
        for id in ("good-1", "bad", "good-2"):
            outbox.send(connection, eo.Message(id=id, data=1))
    serve = asyncio.create_task(relay.serve())
    await until(lambda: relay.totals.published == 2 and relay.totals.parked == 1)
    scraped = await page(relay)
    assert scraped.value("effectonce_relay_total", destination="orders", kind="published") == 2
    assert scraped.value("effectonce_relay_total", destination="orders", kind="parked") == 1
    assert scraped.value("effectonce_outbox_messages", state="parked") == 1
    assert scraped.value("effectonce_outbox_messages", state="pending") == 0
    assert scraped.value("effectonce_outbox_oldest_seconds") > 0
    assert await aget(relay.listen or "", "/readyz") == (200, "ok\n")
    relay.stop()
    await serve
    store.close()


async def test_a_worker_serves_the_metrics_and_the_readiness_of_the_relay_in_its_process(
    tmp_path: Path, unique_name: str
) -> None:
    """The alert on an outbox's lag reads them, and a worker that is ready while its relay is not hides an outage."""
    store = eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None)
    store.migrate()
    broker = eo.connect_broker("memory://")
    worker = eo.Worker(broker, store=store, name=unique_name, listen="127.0.0.1:0")
    relay = eo.Relay(store, broker)
    worker.add(relay)

    @worker.handler("shipments")
    async def handle(message: eo.Message[int]) -> None: ...

    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("BEGIN")
        eo.Outbox(to="orders").send(connection, eo.Message(data=1))
    serve = asyncio.create_task(worker.serve())
    await until(lambda: relay.totals.published == 1)
    scraped = await page(worker)
    assert scraped.value("effectonce_outbox_messages", state="pending") == 0
    assert scraped.value("effectonce_relay_total", destination="orders", kind="published") == 1
    assert await aget(worker.listen or "", "/readyz") == (200, "ok\n")
    relay.stop()
    await until(lambda: relay.phase == "stopped")
    assert await aget(worker.listen or "", "/readyz") == (503, "it is stopped\n")
    worker.stop()
    await serve
    store.close()


def test_the_commands_serve_the_endpoints(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        textwrap.dedent(f"""
            import effectonce as eo
            worker = eo.Worker(eo.connect_broker("sqlite:///{tmp_path}/queue.db"),
                               store=eo.connect("sqlite:///{tmp_path}/records.db"))
            @worker.handler("orders")
            def handle(message): ...
        """)
    )
    eo.connect(f"sqlite:///{tmp_path}/records.db").migrate()
    commands = [
        ["run", "shop:worker"],
        ["relay", "--store", f"sqlite:///{tmp_path}/records.db", "--broker", f"sqlite:///{tmp_path}/queue.db"],
    ]
    addresses = [f"127.0.0.1:{free_port()}" for _ in commands]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "effectonce", *command, "--listen", address],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            stderr=subprocess.DEVNULL,
        )
        for command, address in zip(commands, addresses, strict=True)
    ]
    try:
        for process, address in zip(running, addresses, strict=True):
            assert answered(process, address, "/healthz") == (200, "ok\n")
            assert "effectonce_ready" in get(address, "/metrics")[1]
            assert get(address, "/nothing")[0] == 404
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            with process:
                assert process.wait(20) == 0


def answered(process: subprocess.Popen[bytes], address: str, path: str) -> tuple[int, str]:
    """What it says as soon as it listens."""
    while process.poll() is None:
        try:
            return get(address, path)
        except URLError:
            time.sleep(0.05)
    raise AssertionError("it ended before it listened")


async def test_a_failing_collector_is_a_500_and_probes_still_answer() -> None:
    class Broken:
        def collect(self) -> list[Any]:
            raise RuntimeError("a defect")

        def describe(self) -> list[Any]:
            return []

    worker = Bench().worker(listen=":0")
    worker.handler("orders")(nothing)
    prometheus_client.REGISTRY.register(Broken())
    async with serving(worker):
        await until(lambda: worker.phase == "running")
        assert (await aget(worker.listen or "", "/metrics"))[0] == 500
        assert (await aget(worker.listen or "", "/readyz"))[0] == 200


@pytest.mark.parametrize("listen", ["9464", "localhost", "localhost:http", "127.0.0.1:70000", ""])
def test_an_invalid_address_is_refused(listen: str) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"write 127\.0\.0\.1:9464"):
        parse_address(listen)


def test_without_a_host_only_this_machine_is_served() -> None:
    """F64: other machines are served only on request."""
    assert parse_address(":9464") == ("127.0.0.1", 9464)
    assert parse_address("[::1]:9464") == ("::1", 9464)
    assert parse_address("0.0.0.0:65535") == ("0.0.0.0", 65535)


async def test_an_address_in_use_stops_the_worker() -> None:
    taken = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    worker = Bench().worker(listen=f"127.0.0.1:{port}")
    worker.handler("orders")(nothing)
    with pytest.raises(eo.ConfigurationError, match="give another address"):
        await worker.serve()
    taken.close()


def nothing(message: eo.Message[int]) -> None: ...


async def test_a_relay_is_not_ready_while_its_broker_is_away(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    broker = FakeBroker()
    broker.raises = lambda packets: eo.BrokerUnavailable("it went for a walk")
    with eo.connect(url, sweep_every=None) as store:
        store.migrate()
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            connection.execute("BEGIN")
            eo.Outbox(to="orders").send(connection, paid())
        connection.close()
        relay = eo.Relay(store, broker, listen="127.0.0.1:0")  # type: ignore[arg-type]
        serving_relay = asyncio.create_task(relay.serve())
        await until(lambda: relay.outage is not None)
        assert await aget(relay.listen or "", "/readyz") == (503, "the broker is away: it went for a walk\n")
        relay.stop()
        await serving_relay


async def test_a_page_says_what_it_is_and_is_not_kept_by_those_who_pass_it_on() -> None:
    worker = Bench().worker(listen="127.0.0.1:0")
    worker.handler("orders")(nothing)

    def ask(path: str, method: str = "GET") -> tuple[str | None, str | None, bytes]:
        with urlopen(Request(f"http://{worker.listen}{path}", method=method), timeout=10) as answer:
            return answer.headers["Content-Type"], answer.headers["Cache-Control"], answer.read()

    async with serving(worker):
        await until(lambda: worker.phase == "running")
        assert await asyncio.to_thread(ask, "/healthz") == ("text/plain; charset=utf-8", "no-store", b"ok\n")
        assert (await asyncio.to_thread(ask, "/healthz", "HEAD"))[2] == b""
        metrics_type, _, text = await asyncio.to_thread(ask, "/metrics")
    assert (metrics_type or "").startswith("text/plain; version=")
    assert b"effectonce_ready" in text


def test_a_client_that_keeps_connections_open_takes_no_more_than_twenty_threads() -> None:
    """Further connections are closed at once, until one of them ends."""

    class Answering:
        def answer(self, path: str) -> tuple[int, str, bytes]:
            return 200, endpoints.TEXT_CONTENT_TYPE, path.encode()

    server = endpoints._Server(("127.0.0.1", 0), endpoints._Request)
    server.endpoints = Answering()  # type: ignore[assignment]
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    try:
        idle = [socket.create_connection(server.server_address[:2], timeout=30) for _ in range(20)]
        with socket.create_connection(server.server_address[:2], timeout=30) as refused:
            assert refused.recv(1) == b"", "it is closed"
        address = "{}:{}".format(*server.server_address[:2])
        idle.pop().close()

        def is_served() -> bool:
            with suppress(URLError, ConnectionError):
                return get(address, "/healthz") == (200, "/healthz")
            return False

        wait_until(is_served)
        for connection in idle:
            connection.close()
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
