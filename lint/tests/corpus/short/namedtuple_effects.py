# ruff: noqa
# expect file: P11
import json
from collections import namedtuple

import boto3
import requests

sqs = boto3.client("sqs")
Route = namedtuple("Route", "kind run")


def open_case(event):
    requests.post("https://desk.example/cases", json=event, timeout=5)


def ignore(event):
    pass


ROUTES = [Route("opened", open_case), Route("seen", ignore)]


def main():
    while True:
        for m in sqs.receive_message(QueueUrl="q").get("Messages", []):
            event = json.loads(m["Body"])
            for route in ROUTES:
                if route.kind == event["kind"]:
                    route.run(event)
            sqs.delete_message(QueueUrl="q", ReceiptHandle=m["ReceiptHandle"])
