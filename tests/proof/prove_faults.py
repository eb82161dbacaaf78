"""A network that fails between us and Redis, PostgreSQL and RabbitMQ, and the count of effects that happened.

All faults come in turn, in an order from the seed: latency, a few bytes at a time, resets, half-closed and silent
connections, lost and halved replies. In mode T the reply to every first COMMIT is cut (F30, a lost COMMIT reply).
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol
from urllib.parse import urlsplit

import psycopg

import effectonce as eo
from tests.harness.proxy import COMMIT_REPLY, FaultProxy
from tests.inbox.conftest import prepare
from tests.inbox.kinds import Place, run_sync
from tests.proof.soak import Tally

FAULTS = ("latency", "slice", "reset", "half-close", "blackhole", "lost reply", "half a reply")
SETTLE_TIMEOUT_S = 120.0


class Reachable(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def port(self) -> int: ...


class FaultSequence:
    """Makes one fault after another while the ``with`` lasts, with a moment of health between them."""

    def __init__(self, proxy: FaultProxy, seed: str) -> None:
        self.proxy = proxy
        self.made: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> FaultSequence:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self.proxy.heal()

    def _run(self) -> None:
        while not self._over.is_set():
            for fault in self._random.sample(FAULTS, len(FAULTS)):
                if self._over.wait(self._random.uniform(0.005, 0.05)):
                    return
                self._make(fault)
                self.made[fault] += 1

    def _make(self, fault: str) -> None:
        proxy = self.proxy
        if fault == "latency":
            proxy.delay = self._random.uniform(0.005, 0.03)
        elif fault == "slice":
            proxy.slice = self._random.randint(1, 7)
        elif fault == "reset":
            proxy.reset()
        elif fault == "half-close":
            proxy.half_close()
        elif fault == "blackhole":
            proxy.blackhole = True
        elif fault == "lost reply":
            proxy.drop_reply(self._random.randint(1, 3))
        else:
            proxy.cut_reply_after(self._random.randint(0, 200))
        self._over.wait(self._random.uniform(0.02, 0.15))
        if fault == "blackhole":
            proxy.reset()  # the swallowed bytes are lost to the connection, as after the last retransmission
        if fault not in ("lost reply", "half a reply"):  # those are over when they have happened
            proxy.heal()


@contextmanager
def faulty_network(server: Reachable, seed: str) -> Iterator[FaultSequence]:
    with FaultProxy(server.port) as proxy, FaultSequence(proxy, seed) as made:
        yield made


def run_leased(server: Reachable, seed: str, faults: int) -> Tally:
    """Mode L through a bad network: an effect repeats only where its call ended without a recorded success."""
    effects: list[tuple[str, int]] = []
    unrecorded: Counter[str] = Counter()  # runs with an effect whose call raised
    with faulty_network(server, seed) as network:
        url = f"{network.proxy.through(server.url)}?timeout=500ms&connect_timeout=500ms"
        with eo.connect(server.url, sweep_every=None) as store:
            store.migrate()
        with eo.connect(url, sweep_every=None) as store:

            @eo.once(store, scope=f"faults-{seed}", key="key", lease="2s")
            def effect(key: str) -> None:
                effects.append((key, threading.get_ident()))

            def deliver(key: str) -> None:
                before = len(effects)
                try:
                    effect(key)
                except Exception:
                    unrecorded[key] += (key, threading.get_ident()) in effects[before:]
                    raise

            tally = _deliver_until(network, deliver, faults)
    counted = Counter(key for key, _ in effects)
    tally.effects = len(effects)
    tally.lost = tally.messages - len(counted)
    tally.doubled = len(effects) - len(counted)
    tally.unrecorded = unrecorded.total()
    for key, times in counted.items():
        if times > 1 + unrecorded[key]:
            tally.violations.append(
                f"{key} happened {times} times, and {unrecorded[key]} runs ended without a recorded success"
            )
    return tally


def run_transactional(server: Reachable, seed: str, faults: int) -> Tally:
    """Mode T on PostgreSQL through a bad network: one row each."""
    with _inbox(server, seed) as (proxy, deliver, rows), FaultSequence(proxy, seed) as network:
        return _count_effects(_deliver_until(network, deliver, faults), rows())


def run_with_cut_commits(server: Reachable, seed: str, messages: int) -> Tally:
    """Mode T on PostgreSQL: the first COMMIT of every message is executed, and its reply cut; one row each (F30)."""
    tally = Tally(messages)
    began = time.monotonic()
    with _inbox(server, seed) as (proxy, deliver, rows):
        for number in range(messages):
            proxy.cut_at(COMMIT_REPLY)
            deliver(f"m{number}")
            tally.deliveries += 1
        tally.faults = proxy.cuts
        if tally.faults < messages:
            tally.violations.append(f"only {tally.faults} of {messages} COMMIT replies were cut")
        tally.seconds = time.monotonic() - began
        return _count_effects(tally, rows())


@contextmanager
def _inbox(server: Reachable, seed: str) -> Iterator[tuple[FaultProxy, Callable[[str], None], Callable[[], list[str]]]]:
    """Yield a proxy, a function that delivers one message to an inbox behind it, and one that returns the effects."""
    database = f"faults_{seed.replace('-', '_')}"
    url = urlsplit(server.url)._replace(path=f"/{database}", query="").geturl()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
        try:
            place = prepare(Place("postgresql", url))
            with FaultProxy(server.port) as proxy, place.connected() as query:
                through = f"{proxy.through(url)}?connect_timeout=2"
                inbox = eo.Inbox(scope="faults", table=place.table)

                @inbox.handler(connect=lambda: psycopg.connect(through, tcp_user_timeout=1000))
                def effect(conn: Any, message: eo.Message[int]) -> None:
                    run_sync(conn, f"INSERT INTO effects (scope, name) VALUES ('faults', '{message.key}')")

                def deliver(key: str) -> None:
                    effect(eo.Message(data=1, id=key))

                deliver("first")  # whose check of the settings has commits of its own
                rows = "SELECT name FROM effects WHERE name <> 'first'"
                yield proxy, deliver, lambda: [name for (name,) in query(rows)]
        finally:
            connection.execute(f"DROP DATABASE {database} WITH (FORCE)")


def run_worker(server: Reachable, store_url: str, seed: str, faults: int) -> Tally:
    """A worker whose broker is behind a bad network, and its store is not: one effect each (F59)."""
    queue = f"faults-{seed}"
    effects: list[str] = []
    began = time.monotonic()

    async def serve(network: FaultSequence) -> Tally:
        tally = Tally(0)
        async with eo.connect_broker(server.url) as direct:
            await direct.backend.declare(queue, group="worker")
            broker = eo.connect_broker(f"{network.proxy.through(server.url)}?timeout=1s")
            store = eo.connect(store_url)
            worker = eo.Worker(broker, store=store, name="worker", drain="5s")

            @worker.handler(queue, retry=eo.Retry(None, first="100ms", cap="1s"))
            async def effect(message: eo.Message[int]) -> None:
                await asyncio.sleep(0.001)
                effects.append(message.key)

            serving = asyncio.ensure_future(worker.serve())
            while network.made.total() < faults:
                messages = [eo.Message(data=number) for number in range(20)]
                await direct.apublish(queue, messages + messages[:2])
                tally.messages += 20
                tally.deliveries += 22
                await asyncio.sleep(0.05)
            tally.faults = network.made.total()
            network.stop()
            deadline = time.monotonic() + SETTLE_TIMEOUT_S
            while len(set(effects)) < tally.messages and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            worker.stop()
            await serving
            await broker.aclose()
            await store.aclose()
        return tally

    with faulty_network(server, seed) as network:
        tally = _count_effects(asyncio.run(serve(network)), effects)
    if tally.doubled:
        tally.violations.append(f"{tally.doubled} happened twice, and the store was never unavailable")
    tally.seconds = time.monotonic() - began
    return tally


def _count_effects(tally: Tally, effects: list[str]) -> Tally:
    tally.effects = len(effects)
    tally.lost = tally.messages - len(set(effects))
    tally.doubled = len(effects) - len(set(effects))
    return tally


def _deliver_until(network: FaultSequence, deliver: Callable[[str], None], faults: int, threads: int = 4) -> Tally:
    """Deliver messages, every fifth of them three times, from several threads, each until it is handled, until so many
    faults were made."""
    tally = Tally(0)
    began = time.monotonic()
    lock = threading.Lock()

    def make_keys() -> Iterator[str]:
        for number in count():
            if network.made.total() >= faults:
                return
            tally.messages += 1
            yield from [f"m{number}"] * (1 if number % 5 else 3)

    keys = make_keys()

    def work() -> None:
        while True:
            with lock:
                key = next(keys, None)
            if key is None:
                return
            deadline = time.monotonic() + SETTLE_TIMEOUT_S
            while time.monotonic() < deadline:
                try:
                    with lock:
                        tally.deliveries += 1
                    deliver(key)
                    break
                except Exception as error:  # a queue delivers again whatever failed
                    name = type(error).__name__
                    with lock:
                        tally.errors[name] = tally.errors.get(name, 0) + 1
                    time.sleep(0.02)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    tally.faults = network.made.total()
    tally.seconds = time.monotonic() - began
    return tally
