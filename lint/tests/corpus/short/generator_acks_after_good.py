# ruff: noqa
# expect file: clean
import json

import boto3
import psycopg

sqs = boto3.client("sqs")


def messages(url):
    while True:
        for message in sqs.receive_message(QueueUrl=url).get("Messages", []):
            yield json.loads(message["Body"])
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def main():
    for order in messages("orders"):
        with psycopg.connect("dbname=x") as conn:
            conn.execute("UPDATE orders SET status = 'packed' WHERE id = %s", (order["id"],))
