# ruff: noqa
# expect file: P11
import json
import sqlite3

import pika

db = sqlite3.connect("x.db")
db.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY AUTOINCREMENT, line TEXT)")


def on_line(ch, method, props, body):
    with db:
        db.execute("INSERT INTO log (line) VALUES (?)", (json.loads(body)["line"],))
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("lines", on_line)
