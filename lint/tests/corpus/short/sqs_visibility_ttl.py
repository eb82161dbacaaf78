# ruff: noqa
# expect file: EO106
import json
from datetime import timedelta

import boto3
import redis
import requests

sqs = boto3.client("sqs")
r = redis.Redis()
KEEP = timedelta(minutes=10)


def claim(key):
    return r.set(f"call:{key}", 1, nx=True, ex=KEEP)


def main():
    while True:
        got = sqs.receive_message(QueueUrl="q", VisibilityTimeout=3600, WaitTimeSeconds=20)
        for m in got.get("Messages", []):
            body = json.loads(m["Body"])
            if claim(body["call_id"]):
                requests.post("https://x.example/calls", json=body, timeout=5)
            sqs.delete_message(QueueUrl="q", ReceiptHandle=m["ReceiptHandle"])
