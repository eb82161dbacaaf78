# ruff: noqa
# expect file: EO201, P11
import json
import queue
import threading

import pika
import requests

jobs = queue.Queue()


def work():
    while True:
        job = jobs.get()
        try:
            requests.post("https://carrier.example/parcels", json=job, timeout=10)
        except Exception:
            print("could not ship", job)
        finally:
            jobs.task_done()


def on_message(channel, method, properties, body):
    jobs.put(json.loads(body))
    channel.basic_ack(delivery_tag=method.delivery_tag)


threading.Thread(target=work, daemon=True).start()
channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="parcels", on_message_callback=on_message)
