# ruff: noqa
# expect file: clean
import json
import threading

import pika
import psycopg2


def rename(data):
    conn = psycopg2.connect("dbname=shop")
    with conn, conn.cursor() as cur:
        cur.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))


def on_message(channel, method, properties, body):
    thread = threading.Thread(target=rename, args=(json.loads(body),))
    thread.start()
    while thread.is_alive():
        channel.connection.process_data_events(time_limit=1)
    thread.join()
    channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="names", on_message_callback=on_message)
