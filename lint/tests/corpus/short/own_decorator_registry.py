# ruff: noqa
# expect file: P11
import json

import boto3
import psycopg

ROUTES = {}


def route(kind):
    def put(function):
        ROUTES.setdefault(kind, []).append(function)
        return function

    return put


@route("tip")
def on_tip(conn, event):
    conn.execute("UPDATE drivers SET tips = tips + %s WHERE id = %s", (event["cents"], event["driver"]))


def main():
    queue = boto3.resource("sqs").get_queue_by_name(QueueName="tips")
    conn = psycopg.connect("dbname=x", autocommit=True)
    while True:
        for message in queue.receive_messages(WaitTimeSeconds=20):
            event = json.loads(message.body)
            for function in ROUTES[event["kind"]]:
                function(conn, event)
            message.delete()
