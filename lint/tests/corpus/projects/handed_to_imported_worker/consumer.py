# ruff: noqa
# expect file: EO201, P11
import json

import pika

from . import worker


def on_message(channel, method, properties, body):
    worker.submit(json.loads(body))
    channel.basic_ack(method.delivery_tag)


worker.start()
channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="parcels", on_message_callback=on_message)
