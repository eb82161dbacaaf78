# ruff: noqa
# expect file: P11
import json

import pika

import app.handlers
from app.bus import HANDLERS


def on_message(ch, method, props, body):
    event = json.loads(body)
    for handler in HANDLERS[event["type"]]:
        handler(event)
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("events", on_message)
channel.start_consuming()
