# ruff: noqa
# expect file: EO106
import json

import boto3
import redis
import requests

sqs = boto3.client("sqs")
cache = redis.Redis()
QUEUE = sqs.create_queue(QueueName="orders", Attributes={"MessageRetentionPeriod": "1209600", "VisibilityTimeout": "60"})["QueueUrl"]


def main():
    while True:
        for message in sqs.receive_message(QueueUrl=QUEUE).get("Messages", []):
            body = json.loads(message["Body"])
            if cache.set(f"order:{body['order_id']}", 1, nx=True, ex=300):
                requests.post("https://erp.example/orders", json=body, timeout=10)
            sqs.delete_message(QueueUrl=QUEUE, ReceiptHandle=message["ReceiptHandle"])


main()
