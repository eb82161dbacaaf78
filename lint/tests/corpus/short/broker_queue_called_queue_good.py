# ruff: noqa
# expect file: clean
import json

import pika
from kombu import Connection

with Connection("amqp://") as connection:
    queue = connection.SimpleQueue("orders.accepted")


def on_message(channel, method, properties, body):
    order = json.loads(body)
    queue.put({"id": order["id"]}, message_id=order["id"])
    channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="orders", on_message_callback=on_message)
