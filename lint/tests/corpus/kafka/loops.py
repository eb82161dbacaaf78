# ruff: noqa
"""confluent-kafka, kafka-python and aiokafka."""

import json
import logging
import os

import psycopg
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaConsumer

log = logging.getLogger(__name__)
CONFIG = {
    "bootstrap.servers": os.environ["KAFKA"],
    "group.id": "billing",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
}


def book():  # expect: P11
    consumer = Consumer(CONFIG)
    consumer.subscribe(["payments"])
    conn = psycopg.connect("dbname=shop")
    while True:
        msg = consumer.poll(1.0)
        if msg is None:
            continue
        if msg.error():
            if msg.error().code() == KafkaError._PARTITION_EOF:
                continue
            raise RuntimeError(msg.error())
        event = json.loads(msg.value())
        with conn.transaction():
            conn.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (event["amount"], event["account"]))
        consumer.commit(msg, asynchronous=False)


def book_once():  # expect: clean
    consumer = Consumer(CONFIG)
    consumer.subscribe(["payments"])
    conn = psycopg.connect("dbname=shop")
    while True:
        msg = consumer.poll(1.0)
        if msg is None or msg.error():
            continue
        event = json.loads(msg.value())
        with conn.transaction():
            cur = conn.execute("INSERT INTO inbox (event_id) VALUES (%s) ON CONFLICT DO NOTHING", (event["event_id"],))
            if cur.rowcount:
                conn.execute(
                    "UPDATE accounts SET balance = balance + %s WHERE id = %s", (event["amount"], event["account"])
                )
        consumer.commit(msg, asynchronous=False)


def book_by_offset():  # expect: EO301
    consumer = Consumer(CONFIG)
    consumer.subscribe(["payments"])
    conn = psycopg.connect("dbname=shop")
    while True:
        msg = consumer.poll(1.0)
        if msg is None or msg.error():
            continue
        event = json.loads(msg.value())
        key = f"{msg.topic()}:{msg.partition()}:{msg.offset()}"
        with conn.transaction():
            cur = conn.execute("INSERT INTO inbox (event_id) VALUES (%s) ON CONFLICT DO NOTHING", (key,))
            if cur.rowcount:
                conn.execute("INSERT INTO ledger (account, amount) VALUES (%s, %s)", (event["account"], event["amount"]))
        consumer.commit(msg, asynchronous=False)


def auto_commit():  # expect: EO201
    consumer = Consumer({"bootstrap.servers": "k:9092", "group.id": "g", "enable.auto.commit": True})
    consumer.subscribe(["orders"])
    conn = psycopg.connect("dbname=shop")
    while True:
        msg = consumer.poll(0.5)
        if msg is None:
            continue
        order = json.loads(msg.value())
        with conn.transaction():
            conn.execute("UPDATE orders SET state = %s WHERE id = %s", (order["state"], order["id"]))


def commit_first():  # expect: EO201
    consumer = KafkaConsumer("orders", group_id="g", enable_auto_commit=False)
    conn = psycopg.connect("dbname=shop")
    for record in consumer:
        consumer.commit()
        order = json.loads(record.value)
        with conn.transaction():
            conn.execute("UPDATE orders SET state = %s WHERE id = %s", (order["state"], order["id"]))


def commit_by_hand_beside_auto_commit():  # expect: EO201
    consumer = KafkaConsumer("orders", group_id="g", bootstrap_servers=["k:9092"])
    conn = psycopg.connect("dbname=shop")
    for record in consumer:
        order = json.loads(record.value)
        with conn.transaction():
            conn.execute("UPDATE orders SET state = %s WHERE id = %s", (order["state"], order["id"]))
        consumer.commit()


def batches():  # expect: P11
    consumer = KafkaConsumer("clicks", group_id="g", enable_auto_commit=False)
    conn = psycopg.connect("dbname=shop")
    while True:
        records = consumer.poll(timeout_ms=500, max_records=100)
        with conn.transaction():
            for _, messages in records.items():
                for message in messages:
                    conn.execute("UPDATE pages SET clicks = clicks + 1 WHERE url = %s", (message.key.decode(),))
        consumer.commit()


def swallowed():  # expect: EO202
    consumer = Consumer(CONFIG)
    consumer.subscribe(["orders"])
    conn = psycopg.connect("dbname=shop")
    while True:
        msg = consumer.poll(1.0)
        if msg is None:
            continue
        try:
            order = json.loads(msg.value())
            with conn.transaction():
                conn.execute("UPDATE orders SET state = %s WHERE id = %s", (order["state"], order["id"]))
        except Exception:
            log.exception("skipping %s", msg.offset())
        consumer.commit(msg)


async def enrich():  # expect: P11
    consumer = AIOKafkaConsumer("raw", group_id="enrich", enable_auto_commit=False)
    producer = AIOKafkaProducer(bootstrap_servers="k:9092")
    await consumer.start()
    await producer.start()
    try:
        async for message in consumer:
            event = json.loads(message.value)
            event["seen"] = True
            await producer.send_and_wait("enriched", json.dumps(event).encode())
            await consumer.commit()
    finally:
        await consumer.stop()


async def project():  # expect: clean
    consumer = AIOKafkaConsumer("orders", group_id="project", enable_auto_commit=False)
    await consumer.start()
    conn = await psycopg.AsyncConnection.connect("dbname=shop")
    async for message in consumer:
        order = json.loads(message.value)
        async with conn.transaction():
            await conn.execute(
                "INSERT INTO orders (id, state) VALUES (%(id)s, %(state)s)"
                " ON CONFLICT (id) DO UPDATE SET state = EXCLUDED.state",
                order,
            )
        await consumer.commit()


async def dual_write():  # expect: EO401
    consumer = AIOKafkaConsumer("orders", group_id="pay", enable_auto_commit=False)
    producer = AIOKafkaProducer(bootstrap_servers="k:9092")
    await consumer.start()
    await producer.start()
    conn = await psycopg.AsyncConnection.connect("dbname=shop")
    async for message in consumer:
        order = json.loads(message.value)
        async with conn.transaction():
            cur = await conn.execute("INSERT INTO inbox (id) VALUES (%s) ON CONFLICT DO NOTHING", (order["event_id"],))
            if cur.rowcount == 0:
                continue
            await conn.execute("UPDATE orders SET state = 'paid' WHERE id = %s", (order["id"],))
        await producer.send("paid", json.dumps({"id": order["id"]}).encode())
        await consumer.commit()


class Forwarder:
    def __init__(self, topic):
        self.consumer = Consumer({**CONFIG, "group.id": "forwarder"})
        self.producer = Producer({"bootstrap.servers": "k:9092"})
        self.topic = topic

    def run(self):  # expect: P11
        self.consumer.subscribe([self.topic])
        while True:
            for message in self.consumer.consume(num_messages=50, timeout=1.0):
                self._forward(message)
            self.consumer.commit()

    def _forward(self, message):
        self.producer.produce(f"{self.topic}.copy", message.value(), message.key())
        self.producer.flush()
