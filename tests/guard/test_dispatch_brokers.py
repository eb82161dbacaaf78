"""`dispatcher` in the loops that people write themselves: pika, aio-pika, confluent-kafka and boto3, on real brokers.

Each queue has a payment twice, one whose first attempt fails, and one that no attempt can mend.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aio_pika
import boto3
import pika
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import effectonce as eo
from effectonce.core.delivery_outcome import DeliveryOutcome

SENT = [json.dumps({"id": name}).encode() for name in ("p1", "p1", "flaky", "broken")]


class Till:
    """What was charged, and what became of the messages."""

    def __init__(self, store: eo.Store) -> None:
        self.charged: list[str] = []
        self.tried: Counter[str] = Counter()
        self.settled: Counter[str] = Counter()
        guard = eo.once(store, scope="charge", key="payment.id", permanent=(ValueError,))

        @guard
        def charge(payment: dict[str, str]) -> None:
            self.charge(payment["id"])

        self.dispatch = eo.dispatcher(charge)

    def charge(self, payment: str) -> None:
        self.tried[payment] += 1
        if payment == "broken":
            raise ValueError(payment)
        if payment == "flaky" and self.tried[payment] == 1:
            raise ConnectionError(payment)
        self.charged.append(payment)

    def count(self, outcome: DeliveryOutcome) -> DeliveryOutcome:
        self.settled[type(outcome).__name__] += 1
        return outcome

    @property
    def is_over(self) -> bool:
        return self.settled["Ack"] + self.settled["Reject"] == len(SENT)

    def assert_each_once(self, dead: list[bytes]) -> None:
        assert sorted(self.charged) == ["flaky", "p1"]
        assert self.settled == {"Ack": 3, "Redeliver": 1, "Reject": 1}
        assert dead == [SENT[-1]]


@pytest.fixture
def till() -> Any:
    with eo.connect("memory://") as store:
        yield Till(store)


def test_pika(till: Till, rabbitmq_url: str, unique_name: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        channel = connection.channel()
        dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{unique_name}.dead"}
        channel.queue_declare(f"{unique_name}.dead", auto_delete=True)
        channel.queue_declare(unique_name, arguments=dead_letters, auto_delete=True)
        for body in SENT:
            channel.basic_publish("", unique_name, body)
        for method, _, body in channel.consume(unique_name, inactivity_timeout=30):
            match till.count(till.dispatch(json.loads(body))):
                case eo.Ack():
                    channel.basic_ack(method.delivery_tag)
                case eo.Redeliver():
                    channel.basic_nack(method.delivery_tag, requeue=True)
                case eo.Reject():
                    channel.basic_nack(method.delivery_tag, requeue=False)
            if till.is_over:
                break
        channel.cancel()
        method, _, body = next(channel.consume(f"{unique_name}.dead", inactivity_timeout=30))
        channel.basic_ack(method.delivery_tag)
        till.assert_each_once([body])


async def test_aio_pika(till: Till, rabbitmq_url: str, unique_name: str) -> None:
    """With an async handler."""
    async with eo.connect("memory://") as store, await aio_pika.connect(rabbitmq_url) as connection:

        @eo.once(store, scope="charge", key="payment.id", permanent=(ValueError,))
        async def charge(payment: dict[str, str]) -> None:
            till.charge(payment["id"])

        dispatch = eo.dispatcher(charge)
        channel = await connection.channel()
        dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{unique_name}.dead"}
        dead = await channel.declare_queue(f"{unique_name}.dead", auto_delete=True)
        queue = await channel.declare_queue(unique_name, arguments=dead_letters, auto_delete=True)
        for body in SENT:
            await channel.default_exchange.publish(aio_pika.Message(body), unique_name)
        async with queue.iterator(timeout=30) as messages:
            async for message in messages:
                match till.count(await dispatch(json.loads(message.body))):
                    case eo.Ack():
                        await message.ack()
                    case eo.Redeliver():
                        await message.nack(requeue=True)
                    case eo.Reject():
                        await message.reject(requeue=False)
                if till.is_over:
                    break
        kept = await dead.get(timeout=30)
        await kept.ack()
        till.assert_each_once([kept.body])


def test_confluent_kafka(till: Till, kafka_url: str, unique_name: str) -> None:
    """The consumer seeks back to redeliver a message; its offset is not committed before it is settled."""
    servers = {"bootstrap.servers": urlsplit(kafka_url).netloc}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(unique_name, 1)])[unique_name].result(30)
    producer = Producer(servers)
    for body in SENT:
        producer.produce(unique_name, body)
    assert producer.flush(30) == 0
    consumer = Consumer(
        {**servers, "group.id": unique_name, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([unique_name])
    dead: list[bytes] = []
    try:
        while not till.is_over:
            message = consumer.poll(30)
            assert message is not None
            body = message.value()
            assert isinstance(body, bytes)
            match till.count(till.dispatch(json.loads(body))):
                case eo.Redeliver():
                    consumer.seek(TopicPartition(unique_name, message.partition() or 0, message.offset() or 0))
                    continue
                case eo.Reject():
                    dead.append(body)  # where a person looks: another topic, flushed, before the offset moves
            consumer.commit(message, asynchronous=False)
        (committed,) = consumer.committed([TopicPartition(unique_name, 0)], timeout=30)
        assert committed.offset == len(SENT)
    finally:
        consumer.close()
    till.assert_each_once(dead)


@pytest.mark.quick_on("ministack")
def test_boto3(till: Till, sqs_url: str, unique_name: str) -> None:
    options = dict(parse_qsl(urlsplit(sqs_url).query))
    sqs = boto3.client("sqs", region_name=options["region"], endpoint_url=options.get("endpoint"))
    queue, dead = (sqs.create_queue(QueueName=name)["QueueUrl"] for name in (unique_name, f"{unique_name}-dead"))
    for body in SENT:
        sqs.send_message(QueueUrl=queue, MessageBody=body.decode())
    while not till.is_over:
        received = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        for message in received.get("Messages", []):
            told = {"QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"]}
            match till.count(till.dispatch(json.loads(message["Body"]))):
                case eo.Ack():
                    sqs.delete_message(**told)
                case eo.Redeliver():
                    sqs.change_message_visibility(**told, VisibilityTimeout=0)
                case eo.Reject():
                    sqs.send_message(QueueUrl=dead, MessageBody=message["Body"])
                    sqs.delete_message(**told)
    kept = sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=5)["Messages"]
    till.assert_each_once([message["Body"].encode() for message in kept])
