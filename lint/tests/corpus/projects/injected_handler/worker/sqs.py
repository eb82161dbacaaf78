# ruff: noqa
from typing import Callable
import json

import boto3


class SqsConsumer:
    def __init__(self, queue_url: str, handler: Callable[[dict], None]) -> None:
        self.queue_url = queue_url
        self.handler = handler
        self.client = boto3.client("sqs")

    def run(self) -> None:
        while True:
            result = self.client.receive_message(QueueUrl=self.queue_url, WaitTimeSeconds=20)
            for message in result.get("Messages", []):
                self.handler(json.loads(message["Body"]))
                self.client.delete_message(QueueUrl=self.queue_url, ReceiptHandle=message["ReceiptHandle"])
