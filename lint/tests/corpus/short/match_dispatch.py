# ruff: noqa
# expect file: P11
import json

import boto3
import requests

sqs = boto3.client("sqs")


class Desk:
    def opened(self, case):
        requests.post("https://desk.example/cases", json=case, timeout=5)

    def closed(self, case):
        requests.put(f"https://desk.example/cases/{case['id']}", json={"open": False}, timeout=5)


desk = Desk()


def route(event):
    match event:
        case {"type": "opened", "case": case}:
            desk.opened(case)
        case {"type": "closed", "case": case}:
            desk.closed(case)
        case _:
            raise ValueError(event)


def run():
    while True:
        reply = sqs.receive_message(QueueUrl="cases")
        for message in reply.get("Messages", []):
            route(json.loads(message["Body"]))
            sqs.delete_message(QueueUrl="cases", ReceiptHandle=message["ReceiptHandle"])
