# ruff: noqa
# expect file: P11
import json
from concurrent.futures import ThreadPoolExecutor

import boto3
import requests

sqs = boto3.client("sqs")


def one(message):
    requests.post("https://x.example/notes", json=json.loads(message["Body"]), timeout=5)
    sqs.delete_message(QueueUrl="q", ReceiptHandle=message["ReceiptHandle"])


def main():
    with ThreadPoolExecutor(8) as pool:
        while True:
            messages = sqs.receive_message(QueueUrl="q").get("Messages", [])
            list(pool.map(one, messages))
