"""Kafka delivers again after a rebalance; the inbox is in the database of the effect, so each happens once.

python kafka_inbox.py kafka://localhost:9092 [shop.db]
"""

import asyncio
import os
import sqlite3
import sys

import effectonce as eo

broker = eo.connect_broker(sys.argv[1])
path = sys.argv[2] if len(sys.argv) > 2 else "shop.db"
inbox = eo.Inbox(scope="stock")
queue = os.environ.get("QUEUE", "sales")


def connect() -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=10)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


worker = eo.Worker(broker, inbox=inbox, connect=connect, name=os.environ.get("GROUP", "stock"))


@worker.handler(queue, batch=True)  # its only effect is in the transaction: up to 50 messages share one
def sell(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
    connection.execute("UPDATE stock SET left = left - ?", (message.data["sold"],))


def left() -> int:
    with connect() as connection:
        return int(connection.execute("SELECT left FROM stock").fetchone()[0])


async def main() -> None:
    with connect() as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE stock (left INTEGER)")
        connection.executescript(inbox.schema_sql("sqlite"))
        connection.execute("INSERT INTO stock VALUES (1000)")
    await broker.backend.declare(queue, group=worker.name)
    sales = [eo.Message(data={"sold": 1}, ordering_key=f"shop-{number % 4}") for number in range(200)]
    await broker.apublish(queue, sales)
    await broker.apublish(queue, sales[:50])  # a producer that did not hear the acks sends some again
    await broker.apublish(queue, eo.Message(data={"sold": 100}, ordering_key="last"))
    serving = asyncio.create_task(worker.serve())
    for _ in range(1200):
        await asyncio.sleep(0.05)
        if left() <= 700 or serving.done():
            break
    await asyncio.sleep(0.5)  # what else may come is known, and changes nothing
    worker.stop()
    await serving
    await broker.aclose()


asyncio.run(main())
print(f"[result]  251 deliveries, 300 sold, {left()} left")
sys.exit(left() != 700)
