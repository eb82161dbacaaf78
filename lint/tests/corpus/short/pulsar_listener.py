# ruff: noqa
# expect file: P11
import json

import psycopg
import pulsar


def listener(consumer, message):
    sale = json.loads(message.data())
    with psycopg.connect("dbname=x") as conn:
        conn.execute("INSERT INTO sales (till, cents) VALUES (%s, %s)", (sale["till"], sale["cents"]))
    consumer.acknowledge(message)


client = pulsar.Client("pulsar://p")
client.subscribe("sales", "till", message_listener=listener)
