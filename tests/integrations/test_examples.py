"""The examples of the task frameworks, on real brokers: a duplicate, one beside the first, a killed worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

import effectonce as eo
from tests.harness.installed import ROOT
from tests.harness.waiting import until
from tests.harness.web import Program, program

EXAMPLES = ROOT / "examples"


def lines(worker: Program, name: str = "bank.txt") -> list[str]:
    book = Path(worker.dir, name)
    return book.read_text().splitlines() if book.exists() else []


@pytest.fixture
def store_url(redis_url: str, unique_name: str) -> str:
    return f"{redis_url}?namespace={unique_name}"


@pytest.fixture
def store(store_url: str) -> Iterator[eo.Store]:
    with eo.connect(store_url) as store:
        yield store


def loaded(folder: str, module: str, monkeypatch: pytest.MonkeyPatch, **variables: str) -> Any:
    """The example's module, in this process: what a producer imports."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(EXAMPLES / folder))
    monkeypatch.delitem(sys.modules, module, raising=False)
    return __import__(module)


@pytest.mark.long
@pytest.mark.chaos
def test_celery(redis_url: str, store_url: str, store: eo.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"BROKER": redis_url, "EFFECTONCE_STORE": store_url, "VISIBILITY": "3", "BANK_SECONDS": "60"}
    tasks = loaded("task_queues", "celery_tasks", monkeypatch, **variables)
    queue = f"q{time.time_ns()}"
    command = ("-m", "celery", "-A", "celery_tasks", "worker", "-Q", queue, "-l", "INFO", "-c", "4")
    options = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    variables["PYTHONPATH"] = str(EXAMPLES / "task_queues")

    def send(payment: str) -> Any:
        charge = tasks.charge.s(payment, 4200).set(queue=queue)
        return (charge | tasks.thank.s().set(queue=queue)).apply_async()

    with program(*command, *options, ready="ready.", variables=variables) as worker:
        first = send("p1")
        until(lambda: lines(worker))
        worker.kill()
        worker.variables["BANK_SECONDS"] = "0.3"
        time.sleep(3.5)  # over the visibility timeout: a worker looks for such tasks when it starts, and then rarely
        worker.restart()
        with pytest.raises(eo.InDoubt):
            first.parent.get(timeout=60)
        assert lines(worker) == ["p1 4200"]
        together = [send("p2") for _ in range(4)]
        assert {result.get(timeout=60) for result in together} == {"thanks for the receipt for p2"}
        assert lines(worker) == ["p1 4200", "p2 4200"]
        assert lines(worker, "thanks.txt") == ["receipt for p2"] * 4
    (doubted,) = store.list(state="in_doubt").records
    assert doubted.key == "p1"


@pytest.mark.long
@pytest.mark.chaos
def test_an_outbox_feeds_celery(redis_url: str, store_url: str, unique_name: str) -> None:
    """F42: its relay and sender are killed; each task runs once, and that of a rolled back order never."""
    folder = EXAMPLES / "outbox_celery"
    variables = {"BROKER": redis_url, "EFFECTONCE_STORE": store_url, "QUEUE": unique_name, "PYTHONPATH": str(folder)}
    options = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-c", "2", "-l", "INFO")
    orders = [f"o-{number}" for number in range(6)]
    with (
        program("-m", "effectonce", "run", "shop:worker", ready="[worker]", variables=variables) as sender,
        program("-m", "celery", "-A", "shop", "worker", *options, ready="ready.", variables=variables) as worker,
    ):

        def place(order: str, amount: int) -> int:
            command = [sys.executable, str(folder / "shop.py"), order, str(amount)]
            return subprocess.run(command, cwd=sender.dir, env=sender.environment(), stderr=subprocess.PIPE).returncode

        assert place("o-bad", -1) == 1
        for order in orders:
            assert place(order, 4200) == 0
            if order in orders[1::2]:
                sender.kill()
                sender.restart()
        until(lambda: len(lines(worker)) >= len(orders), 60)
        assert sorted(lines(worker)) == [f"{order} 4200" for order in orders]
    with eo.connect(store_url) as store:
        assert {record.key for record in store.list(scope="shop.charge").records} == {
            record.key for record in store.list(scope=f"{unique_name}/*/celery").records
        }


def amqp(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(url))


def counted(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


@pytest.mark.long
@pytest.mark.chaos
def test_dramatiq(rabbitmq_url: str, store_url: str, store: eo.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"BROKER": rabbitmq_url, "EFFECTONCE_STORE": store_url, "BANK_SECONDS": "60"}
    tasks = loaded("task_queues", "dramatiq_tasks", monkeypatch, **variables)
    paths = ("--path", str(EXAMPLES / "task_queues"))
    command = ("-m", "dramatiq", *paths, "--processes", "1", "--threads", "4", "dramatiq_tasks")
    with program(*command, ready="Worker process is ready for action", variables=variables) as worker:
        message = tasks.charge.message("p1", 4200)
        tasks.broker.enqueue(message)
        until(lambda: lines(worker))
        tasks.broker.enqueue(message)
        worker.kill()
        worker.variables["BANK_SECONDS"] = "0.3"
        worker.restart()
        until(lambda: store.list(state="in_doubt").records)
        for _ in range(4):
            tasks.charge.send("p2", 4200)
        tasks.charge.send("p3", 4200)
        until(lambda: len(lines(worker)) == 3)
        with amqp(rabbitmq_url) as connection:
            channel = connection.channel()
            until(lambda: [counted(channel, f"default{suffix}") for suffix in ("", ".DQ", ".XQ")] == [0, 0, 2])
            channel.queue_purge("default.XQ")
        assert sorted(lines(worker)) == ["p1 4200", "p2 4200", "p3 4200"]
    tasks.broker.close()
    assert [record.key for record in store.list(state="in_doubt").records] == ["p1"]


@pytest.mark.chaos
def test_faststream(rabbitmq_url: str, store_url: str, store: eo.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"BROKER": rabbitmq_url, "EFFECTONCE_STORE": store_url, "BANK_SECONDS": "60"}
    app = loaded("faststream", "app", monkeypatch, **variables)

    def publish(*payments: str) -> None:
        for payment in payments:
            asyncio.run(app.send(payment))

    command = ("-m", "faststream", "run", "--app-dir", str(EXAMPLES / "faststream"), "app:app")
    with program(*command, ready="FastStream app started", variables=variables) as worker:
        publish("p1")
        until(lambda: lines(worker))
        publish("p1")
        worker.kill()
        worker.variables["BANK_SECONDS"] = "0.3"
        worker.restart()
        until(lambda: store.list(state="in_doubt").records)
        publish("p2", "p2", "p2", "p3")
        until(lambda: len(lines(worker)) == 3)
        with amqp(rabbitmq_url) as connection:
            channel = connection.channel()
            until(lambda: [counted(channel, f"card-payments{suffix}") for suffix in ("", ".dead")] == [0, 2])
        until(lambda: len(store.list(state="done").records) == 2)
        assert sorted(lines(worker)) == ["p1 4200", "p2 4200", "p3 4200"]
    with amqp(rabbitmq_url) as connection:  # duplicates that the worker has given back when it ended
        for queue in ("card-payments", "card-payments.dead"):
            connection.channel().queue_delete(queue)
