# ruff: noqa
# expect file: clean
import json

import pika
import psycopg


def claim(conn, key):
    cur = conn.execute("INSERT INTO inbox (id) VALUES (%s) ON CONFLICT (id) DO NOTHING", (key,))
    return cur.statusmessage == "INSERT 0 1"


def on_bid(ch, method, props, body):
    bid = json.loads(body)
    with psycopg.connect("dbname=x") as conn:
        if claim(conn, bid["id"]):
            conn.execute("UPDATE lots SET bids = bids + 1 WHERE id = %s", (bid["lot"],))
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("bids", on_bid)
