# ruff: noqa
# expect file: clean
import json

import pika
import psycopg
import redis

r = redis.Redis()


def on_sale(ch, method, props, body):
    sale = json.loads(body)
    key = "sale:" + sale["sale_id"]
    if r.set(key, 1, nx=True, ex=86400 * 14):
        try:
            with psycopg.connect("dbname=x") as conn:
                conn.execute("UPDATE tills SET cash = cash + %s WHERE id = %s", (sale["cents"], sale["till"]))
        except Exception:
            r.delete(key)
            raise
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="sales", on_message_callback=on_sale)
