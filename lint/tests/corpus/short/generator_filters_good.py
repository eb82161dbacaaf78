# ruff: noqa
# expect file: clean
import json

import boto3
import requests
import redis

sqs = boto3.client("sqs")
r = redis.Redis()


def fresh():
    for message in sqs.receive_message(QueueUrl="q").get("Messages", []):
        body = json.loads(message["Body"])
        if r.set(f"seen:{body['id']}", 1, nx=True, ex=1209600):
            yield body
        sqs.delete_message(QueueUrl="q", ReceiptHandle=message["ReceiptHandle"])


def main():
    while True:
        for body in fresh():
            requests.post("https://carrier.example/parcels", json=body, timeout=5)
