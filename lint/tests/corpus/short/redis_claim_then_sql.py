# ruff: noqa
# expect file: EO104
import json

import pika
import psycopg
import redis

r = redis.Redis()


class Till:
    def __init__(self):
        self.conn = psycopg.connect("dbname=x")

    def take(self, sale):
        with self.conn.transaction():
            self.conn.execute("UPDATE tills SET cash = cash + %s WHERE id = %s", (sale["cents"], sale["till"]))


till = Till()


def on_sale(ch, method, props, body):
    sale = json.loads(body)
    if r.set("sale:" + sale["sale_id"], 1, nx=True, ex=86400 * 14):
        till.take(sale)
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="sales", on_message_callback=on_sale)
