# ruff: noqa
# expect file: clean
import json
from collections import deque

import pika
import psycopg2
from flask import Flask

app = Flask(__name__)
recent = deque(maxlen=100)
conn = psycopg2.connect("dbname=shop")


def on_message(channel, method, properties, body):
    data = json.loads(body)
    with conn, conn.cursor() as cur:
        cur.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))
    recent.append(data)
    channel.basic_ack(method.delivery_tag)


@app.get("/last")
def last():
    return recent.pop()


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="names", on_message_callback=on_message)
