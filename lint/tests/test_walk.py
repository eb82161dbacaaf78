"""Each walk starts afresh: an earlier one changes nothing in it, not even one that ran out of fuel."""

from __future__ import annotations

from effectonce_lint.python.analysis import check_module
from effectonce_lint.python.consumers import FUNCTION_FUEL, ConsumerScanner
from effectonce_lint.python.project import Project

ENDLESS = f"[{'x, ' * FUNCTION_FUEL}]"
"""More expressions than the scan evaluates in one function."""


def scanner_of(text: str) -> ConsumerScanner:
    project = Project()
    return ConsumerScanner(project, project.add("/consumer.py", text.encode()))


def test_after_a_finally_that_was_too_long_the_next_function_is_not_in_a_finally() -> None:
    scanner = scanner_of(
        f"""\
from kafka import KafkaConsumer


def drain(consumer):
    try:
        consumer.poll()
    finally:
        {ENDLESS}


def read():
    for message in KafkaConsumer("orders"):
        print(message)
"""
    )
    scanner.scan()
    assert [(op.kind, op.in_finally) for op in scanner.trace.ops] == [("receive", False)]


def test_a_queues_reader_is_walked_for_each_function_that_fills_the_queue() -> None:
    scanner = scanner_of(
        """\
import queue

import pika

subscriptions = queue.Queue()
channel = pika.BlockingConnection().channel()


def work():
    name, callback = subscriptions.get()
    channel.basic_consume(name, callback)


def first(message):
    subscriptions.put((message, on_order))  # basic_consume


def second(message):
    subscriptions.put((message, on_payment))  # basic_consume


def on_order(channel, method, properties, body): ...


def on_payment(channel, method, properties, body): ...
"""
    )
    assert {consumer.name for consumer in scanner.scan()} == {"on_order", "on_payment"}


def test_a_name_whose_evaluation_was_broken_off_is_evaluated_by_the_next_walk() -> None:
    project = Project()
    module = project.add(
        "/tasks.py",
        f"""\
import stripe
from celery import Celery

app = Celery()


def connect():
    {ENDLESS}
    return stripe


client = connect()


def listen():
    client.subscribe("payments")


@app.task
def charge(payment_id):
    client.Charge.create(amount=1)
""".encode(),
    )
    assert "P11" in {finding.rule for finding in check_module(project, module).findings}


def test_a_class_whose_base_has_the_name_of_a_class_that_derives_from_it_is_walked_once() -> None:
    scanner = scanner_of(
        """\
from rq.worker import Worker

Base = Worker


class RecordingWorker(Base):
    def run(self):
        self.missing_method()


Worker = RecordingWorker


def listen():
    worker = Worker(["orders"])
    worker.work()
    worker.subscribe("orders")
"""
    )
    scanner.scan()
    assert scanner.skipped == []
