"""A Celery task is sent if, and only if, the order commits: python shop.py o-1 4200"""

import os
import sqlite3
import sys
from contextlib import closing

from celery import Celery

import effectonce as eo
from effectonce.integrations.celery import guard_tasks

redis = os.environ.get("BROKER", "redis://localhost:6379/0")
queue = os.environ.get("QUEUE", "outgoing-tasks")
app = Celery("shop", broker=redis, backend=redis)
app.conf.task_default_queue = f"celery-{queue}"
claims = eo.connect(os.environ.get("EFFECTONCE_STORE", redis))  # of the tasks: all Celery workers share it
guard_tasks(app, claims)

database = eo.connect("sqlite:///shop.db")
outbox = eo.Outbox(to=queue)
broker = eo.connect_broker(redis)
worker = eo.Worker(broker, store=claims, name="celery")
worker.add(eo.Relay(database, broker))


@app.task(name="shop.charge")
def charge(order: str, amount: int) -> None:
    with open("bank.txt", "a") as book:
        print(order, amount, file=book)


@worker.handler(queue)
def send_task(message: eo.Message[dict[str, object]]) -> None:
    """Sent again after a crash, it has the same id: for `guard_tasks` it is a duplicate."""
    app.send_task(message.type, kwargs=message.data, task_id=message.key)


def place(order: str, amount: int) -> None:
    database.migrate()
    with closing(sqlite3.connect("shop.db", timeout=10)) as conn, conn:
        conn.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, amount INTEGER)")
        conn.execute("INSERT INTO orders VALUES (?, ?)", (order, amount))
        outbox.send(conn, eo.Message(type=charge.name, data={"order": order, "amount": amount}))
        if amount < 0:
            raise ValueError(f"{order} is rolled back, and its task is never sent")


if __name__ == "__main__":
    place(sys.argv[1], int(sys.argv[2]))
