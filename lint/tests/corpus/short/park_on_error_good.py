# ruff: noqa
# expect file: clean
import json
import logging

import boto3
import psycopg

sqs = boto3.client("sqs")


def main():
    while True:
        for message in sqs.receive_message(QueueUrl="in").get("Messages", []):
            try:
                data = json.loads(message["Body"])
                with psycopg.connect("dbname=x") as conn:
                    conn.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))
            except Exception:
                logging.exception("parked")
                sqs.send_message(QueueUrl="parked", MessageBody=message["Body"])
            sqs.delete_message(QueueUrl="in", ReceiptHandle=message["ReceiptHandle"])
