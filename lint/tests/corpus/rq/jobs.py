# ruff: noqa
"""rq: by decorator, and by being enqueued."""

import csv
from datetime import datetime

import requests
from redis import Redis
from rq import Queue, Retry
from rq.decorators import job

connection = Redis()
queue = Queue("default", connection=connection)


@job("mail", connection=connection, retry=Retry(max=3))
def post_to_chat(channel, text):  # expect: P11
    requests.post("https://hooks.chat.example/services/T0/B0", json={"channel": channel, "text": text}, timeout=5)


def export_row(order_id, total):  # expect: P11
    with open("/data/orders.csv", "a", newline="") as file:
        csv.writer(file).writerow([datetime.now().isoformat(), order_id, total])


def export_file(order_id, total):  # expect: clean
    with open(f"/data/orders/{order_id}.csv", "w", newline="") as file:
        csv.writer(file).writerow([order_id, total])


def not_a_job(order_id):
    requests.post("https://erp.example/orders", json={"id": order_id}, timeout=5)


def submit(order_id, total):
    queue.enqueue(export_row, order_id, total, retry=Retry(max=3))
    queue.enqueue(export_file, args=(order_id, total))
