# ruff: noqa
# expect file: EO102, EO103
import json

import pika
import psycopg2


class Store:
    def __init__(self, dsn):
        self.conn = psycopg2.connect(dsn)

    def known(self, key):
        with self.conn, self.conn.cursor() as cur:
            cur.execute("SELECT 1 FROM done WHERE key = %s", (key,))
            return cur.fetchone() is not None

    def add(self, post):
        with self.conn, self.conn.cursor() as cur:
            cur.execute("UPDATE posts SET likes = likes + 1 WHERE id = %s", (post,))

    def done(self, key):
        with self.conn, self.conn.cursor() as cur:
            cur.execute("INSERT INTO done (key) VALUES (%s) ON CONFLICT DO NOTHING", (key,))


store = Store("dbname=x")


def on_like(ch, method, props, body):
    like = json.loads(body)
    if not store.known(like["like_id"]):
        store.add(like["post"])
        store.done(like["like_id"])
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("likes", on_like)
