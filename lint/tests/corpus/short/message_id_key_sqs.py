# ruff: noqa
# expect file: EO301
import json

import boto3
import redis
import requests

sqs = boto3.client("sqs")
r = redis.Redis()


def once(key):
    return bool(r.set(f"done:{key}", 1, nx=True, ex=1209600))


def main():
    while True:
        for m in sqs.receive_message(QueueUrl="q").get("Messages", []):
            if once(m["MessageId"]):
                requests.post("https://carrier.example/parcels", json=json.loads(m["Body"]), timeout=5)
            sqs.delete_message(QueueUrl="q", ReceiptHandle=m["ReceiptHandle"])
