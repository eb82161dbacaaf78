"""A message leaves if, and only if, the transaction that wrote it commits: python outbox_relay.py [BROKER_URL]"""

import asyncio
import os
import sqlite3
import sys

import effectonce as eo

queue = os.environ.get("QUEUE", "shipments")
store = eo.connect("sqlite:///orders.db")
broker = eo.connect_broker(sys.argv[1] if len(sys.argv) > 1 else "memory://")
inbox, outbox = eo.Inbox(scope="orders"), eo.Outbox(to=queue)
relay = eo.Relay(store, broker)
worker = eo.Worker(broker, store=store, name="shipping")
shipped: list[str] = []


def order_paid(conn: sqlite3.Connection, message: eo.Message[dict[str, str]]) -> None:
    """One delivery: that it came, what it changes and what it tells others are one commit."""
    with conn:
        if inbox.first(conn, message):
            order = message.data["order"]
            conn.execute("INSERT INTO orders VALUES (?, 'paid')", (order,))
            outbox.send(conn, eo.Message(type="order.paid", data={"order": order}, ordering_key=order))
            if order == "o-bad":
                raise ValueError("rolled back, so nobody hears of it")


@worker.handler(queue, type="order.paid")
async def ship(message: eo.Message[dict[str, str]]) -> None:
    shipped.append(message.data["order"])
    if len(shipped) == 2:
        worker.stop()


async def main() -> None:
    await broker.backend.declare(queue, group=worker.name)
    await relay.drain()  # as a process of its own: effectonce relay --from sqlite:///orders.db --to URL
    await asyncio.wait_for(worker.serve(), 60)
    await broker.aclose()


store.migrate()
conn = sqlite3.connect("orders.db")
conn.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)")
for name in ("o-1", "o-2", "o-bad"):
    message = eo.Message(type="payment.settled", data={"order": name}, id=f"settled-{name}")
    for _ in range(2):  # the queue delivers at least once; today, twice
        try:
            order_paid(conn, message)
        except ValueError as error:
            print(f"[{name}] {error}")
(rows,) = conn.execute("SELECT count(*) FROM orders").fetchone()
conn.close()
asyncio.run(main())
print(f"[result] 6 deliveries, {rows} orders, shipped: {', '.join(sorted(shipped))}")
sys.exit((rows, sorted(shipped)) != (2, ["o-1", "o-2"]))
