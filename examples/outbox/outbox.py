"""A message leaves if, and only if, the transaction that wrote it commits: python outbox.py [BROKER_URL]"""

import os
import sqlite3
import sys

import effectonce as eo

queue = os.environ.get("QUEUE", "shipments")
store = eo.connect("sqlite:///orders.db")
broker = eo.connect_broker(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///queue.db")
inbox, outbox = eo.Inbox(scope="orders"), eo.Outbox(to=queue)


def connect() -> sqlite3.Connection:
    conn = sqlite3.connect("orders.db", timeout=10)
    conn.execute("PRAGMA synchronous = FULL")
    return conn


def order_paid(conn: sqlite3.Connection, message: eo.Message[dict[str, str]]) -> None:
    """Handle one delivery: the dedup row, the order and the message to others are one commit."""
    with conn:
        if inbox.first(conn, message):
            order = message.data["order"]
            conn.execute("INSERT INTO orders VALUES (?)", (order,))
            outbox.send(conn, eo.Message(type="order.paid", data={"order": order}, ordering_key=order))
            if order == "o-bad":
                raise ValueError("rolled back, so its message is never published")


worker = eo.Worker(broker, inbox=eo.Inbox(scope="shipping"), connect=connect, name="shipping")
worker.add(eo.Relay(store, broker))  # as a process of its own: effectonce relay --store URL --broker URL


@worker.handler(queue, type="order.paid")
def ship(conn: sqlite3.Connection, message: eo.Message[dict[str, str]]) -> None:
    conn.execute("INSERT INTO shipments VALUES (?)", (message.data["order"],))
    if {*shipped(conn)} == {"o-1", "o-2"}:
        worker.stop()  # after this message


def shipped(conn: sqlite3.Connection) -> list[str]:
    return [order for (order,) in conn.execute("SELECT order_id FROM shipments ORDER BY order_id")]


store.migrate()
conn = connect()
conn.executescript("CREATE TABLE IF NOT EXISTS orders (id); CREATE TABLE IF NOT EXISTS shipments (order_id)")
for name in ("o-1", "o-2", "o-bad"):
    message = eo.Message(type="payment.settled", data={"order": name}, id=f"settled-{name}")
    for _ in range(2):  # the queue delivers at least once; today, twice
        try:
            order_paid(conn, message)
        except ValueError as error:
            print(f"[{name}]  {error}")
if {*shipped(conn)} != {"o-1", "o-2"}:  # else an earlier run shipped them
    worker.run()
(orders,) = conn.execute("SELECT count(*) FROM orders").fetchone()
print(f"[result] 6 deliveries, {orders} orders, shipped: {', '.join(shipped(conn))}")
sys.exit((orders, shipped(conn)) != (2, ["o-1", "o-2"]))
