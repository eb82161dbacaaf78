# ruff: noqa
# expect file: EO202
import json

import boto3
import psycopg

sqs = boto3.resource("sqs").Queue("names")


def handle(body):
    data = json.loads(body)
    with psycopg.connect("dbname=x") as conn:
        conn.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))


def main():
    while True:
        for message in sqs.receive_messages(MaxNumberOfMessages=10):
            try:
                handle(message.body)
            except Exception:
                print("bad message", message.body)
            finally:
                message.delete()
