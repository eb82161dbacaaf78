# ruff: noqa
# expect file: clean
import functools
import json

import pika
import psycopg


def inbox(dsn):
    def outer(fn):
        @functools.wraps(fn)
        def inner(ch, method, props, body):
            event = json.loads(body)
            with psycopg.connect(dsn) as conn:
                new = conn.execute(
                    "INSERT INTO inbox (event_id) VALUES (%s) ON CONFLICT DO NOTHING RETURNING 1", (event["event_id"],)
                ).fetchone()
                if new:
                    fn(conn, event)
            ch.basic_ack(method.delivery_tag)

        return inner

    return outer


@inbox("dbname=x")
def liked(conn, event):
    conn.execute("UPDATE posts SET likes = likes + 1 WHERE id = %s", (event["post"],))


channel = pika.BlockingConnection().channel()
channel.basic_consume("likes", liked)
