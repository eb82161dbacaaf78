# ruff: noqa
# expect file: EO201
import json
from concurrent.futures import ThreadPoolExecutor

import pika
import psycopg2

conn = psycopg2.connect("dbname=shop")


class Renamer:
    def __init__(self):
        self.executor = ThreadPoolExecutor(4)
        self.futures = []

    def rename(self, data):
        with conn, conn.cursor() as cur:
            cur.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))

    def on_message(self, channel, method, properties, body):
        future = self.executor.submit(self.rename, json.loads(body))
        self.futures.append(future)
        channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="names", on_message_callback=Renamer().on_message)
