# ruff: noqa
# expect file: clean
import json

import pika
from pymongo import MongoClient

orders = MongoClient()["shop"]["orders"]


def on_order(ch, method, props, body):
    order = json.loads(body)
    orders.update_one({"_id": order["id"]}, {"$set": {"total": order["total"]}}, upsert=True)
    ch.basic_publish(
        exchange="events", routing_key="order", body=body, properties=pika.BasicProperties(message_id=order["id"])
    )
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("orders", on_order)
