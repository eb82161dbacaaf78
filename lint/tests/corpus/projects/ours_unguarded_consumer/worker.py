# ruff: noqa
# expect file: P11
import json
import pika
from effectonce import Guard
from effectonce.stores.sqlite import SqliteStore
import requests

guard = Guard(SqliteStore("x.db"))

@guard.once(key=lambda order: order["id"])
def reserve(order):
    requests.post("https://stock/reserve", json=order)

def on_message(ch, method, props, body):
    order = json.loads(body)
    reserve(order)
    requests.post("https://crm/notes", json={"order": order["id"]})
    ch.basic_ack(method.delivery_tag)

channel = pika.BlockingConnection().channel()
channel.basic_consume("orders", on_message)
