# ruff: noqa
# expect file: EO104
import json

import boto3
import redis
import requests

sqs = boto3.client("sqs")
r = redis.Redis()


def handle(order):
    if r.sismember("orders", order["id"]):
        return
    r.sadd("orders", order["id"])
    r.expire("orders", 1209600)
    requests.post("https://carrier.example/parcels", json=order, timeout=5).raise_for_status()


def main():
    while True:
        for m in sqs.receive_message(QueueUrl="q").get("Messages", []):
            handle(json.loads(m["Body"]))
            sqs.delete_message(QueueUrl="q", ReceiptHandle=m["ReceiptHandle"])
