# ruff: noqa
# expect file: P11
import json

import pika
import psycopg


def make_handler(dsn, sql):
    conn = psycopg.connect(dsn)

    def handle(ch, method, props, body):
        data = json.loads(body)
        with conn.transaction():
            conn.execute(sql, (data["n"], data["id"]))
        ch.basic_ack(method.delivery_tag)

    return handle


channel = pika.BlockingConnection().channel()
channel.basic_consume("stock", make_handler("dbname=x", "UPDATE stock SET n = n - %s WHERE id = %s"))
