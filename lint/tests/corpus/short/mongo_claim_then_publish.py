# ruff: noqa
# expect file: EO401
import json

import pika
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError

orders = MongoClient()["shop"]["orders"]


def on_order(ch, method, props, body):
    order = json.loads(body)
    try:
        orders.insert_one({"_id": order["id"], "total": order["total"]})
    except DuplicateKeyError:
        ch.basic_ack(method.delivery_tag)
        return
    ch.basic_publish(exchange="events", routing_key="order.created", body=body)
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("orders", on_order)
