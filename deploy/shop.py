"""The application that these files deploy. Replace it with yours.

python shop.py migrate            create its own tables (`effectonce migrate` creates those of effectonce)
python shop.py order o-1          place an order: its row and its message are one commit
effectonce relay                  publish the messages to the broker
effectonce run shop:worker        ship each order once, however often its message is delivered
"""

import os
import sys

import psycopg

import effectonce as eo

DATABASE = os.environ.get("EFFECTONCE_STORE", "postgresql://localhost/shop")
QUEUE = os.environ.get("SHOP_QUEUE", "orders")

outbox = eo.Outbox(to=QUEUE)


def connect() -> psycopg.Connection:
    return psycopg.connect(DATABASE)


worker = eo.Worker(
    eo.connect_broker(), inbox=eo.Inbox(scope="shipping"), connect=connect, name="shop", prefetch=20, drain="30s"
)


@worker.handler(QUEUE, type="order.placed", concurrency=10)
def ship(conn: psycopg.Connection, message: eo.Message[dict[str, str]]) -> None:
    conn.execute("INSERT INTO shipments (order_id) VALUES (%s)", [message.data["order"]])


def migrate() -> None:
    with connect() as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY)")
        conn.execute("CREATE TABLE IF NOT EXISTS shipments (order_id text NOT NULL)")


def place_order(order: str) -> None:
    with connect() as conn:
        conn.execute("INSERT INTO orders (id) VALUES (%s)", [order])
        outbox.send(conn, eo.Message(type="order.placed", data={"order": order}, ordering_key=order))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["migrate"]:
            migrate()
        case ["order", name]:
            place_order(name)
        case _:
            sys.exit(__doc__)
