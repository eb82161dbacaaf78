"""Kafka delivers again after a rebalance; the dedup row is in the database of the effect, so each sale counts once.

python kafka_inbox.py [kafka://localhost:9092] [shop.db]
"""

import os
import sqlite3
import sys

import effectonce as eo

given = [*sys.argv[1:], "", ""]
broker = eo.connect_broker(given[0] or "kafka://localhost:9092")
path = given[1] or "shop.db"
inbox = eo.Inbox(scope="stock")
queue = os.environ.get("QUEUE", "sales")
delivered: list[str] = []


def connect() -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=10)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


worker = eo.Worker(broker, inbox=inbox, connect=connect, name=os.environ.get("GROUP", "stock"))


@worker.handler(
    queue,
    batch=True,  # its only effect is in the transaction: up to 50 messages share one
    retry=eo.Retry(max_crashes=20),  # you may kill it for fun: its messages are not to blame
)
def sell(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
    connection.execute("UPDATE stock SET left = left - ?", (message.data["sold"],))


def left() -> int:
    with connect() as connection:
        return int(connection.execute("SELECT left FROM stock").fetchone()[0])


def on_event(event: eo.Event) -> None:
    if event.kind in ("first", "duplicate"):  # its transaction is committed
        delivered.append(event.key)
    if len(delivered) >= 251 and left() <= 700:
        worker.stop()


with connect() as connection:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS stock (left INTEGER)")
    connection.execute("INSERT INTO stock SELECT 1000 WHERE NOT EXISTS (SELECT * FROM stock)")
    inbox.migrate(connection)
sales = [eo.Message(data={"sold": 1}, ordering_key=f"shop-{n % 4}", id=f"sale-{n}") for n in range(200)]
with broker:
    broker.declare(queue, group=worker.name)
    broker.publish(queue, sales)
    broker.publish(queue, sales[:50])  # a producer that did not get the acks sends some again
    broker.publish(queue, eo.Message(data={"sold": 100}, ordering_key="last", id="sale-of-the-rest"))
worker.events.add_hook(on_event)
worker.run()
print(f"[result]  {len(delivered)} deliveries, {1000 - left()} sold, {left()} left")
sys.exit(left() != 700)
