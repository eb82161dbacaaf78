# ruff: noqa
import json
from typing import Callable

import pika


class EventBus:
    def __init__(self, url: str) -> None:
        self._handlers: dict[str, Callable] = {}
        self._channel = pika.BlockingConnection(pika.URLParameters(url)).channel()

    def on(self, name: str):
        def decorator(fn):
            self._handlers[name] = fn
            return fn

        return decorator

    def run(self, queue: str) -> None:
        self._channel.basic_consume(queue, self._dispatch)
        self._channel.start_consuming()

    def _dispatch(self, ch, method, props, body):
        event = json.loads(body)
        self._handlers[event["type"]](event)
        ch.basic_ack(method.delivery_tag)
