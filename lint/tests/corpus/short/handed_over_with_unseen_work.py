# ruff: noqa
# expect file: EO201
import json
import queue
import threading

import pika
from shop_private.orders import process_order

tasks = queue.Queue()


def worker():
    while True:
        process_order(tasks.get())
        tasks.task_done()


def on_message(ch, method, properties, body):
    tasks.put(json.loads(body))
    ch.basic_ack(delivery_tag=method.delivery_tag)


threading.Thread(target=worker).start()
ch = pika.BlockingConnection().channel()
ch.basic_consume("orders", on_message)
