# ruff: noqa
# expect file: clean
import json, pika, requests
from effectonce import Guard
from effectonce.stores.sqlite import SqliteStore
guard = Guard(SqliteStore("x.db"))

class Shipping:
    @guard.once(key=lambda self, order: order["id"])
    def label(self, order):
        requests.post("https://ship/labels", json=order).raise_for_status()

shipping = Shipping()
def on_message(ch, method, props, body):
    shipping.label(json.loads(body))
    ch.basic_ack(method.delivery_tag)
channel = pika.BlockingConnection().channel()
channel.basic_consume("orders", on_message)
