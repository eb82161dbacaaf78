# ruff: noqa
# expect file: P11
import json

import requests
from confluent_kafka import Consumer


class Validate:
    def __call__(self, event):
        if "id" not in event:
            raise ValueError
        return event


class Notify:
    def __init__(self, url):
        self.url = url

    def __call__(self, event):
        requests.post(self.url, json=event, timeout=5)
        return event


STEPS = [Validate(), Notify("https://x.example/notes")]


def process(event):
    for step in STEPS:
        event = step(event)


def main():
    consumer = Consumer({"bootstrap.servers": "k", "group.id": "g", "enable.auto.commit": False})
    consumer.subscribe(["notes"])
    while True:
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        process(json.loads(message.value()))
        consumer.commit(message)
