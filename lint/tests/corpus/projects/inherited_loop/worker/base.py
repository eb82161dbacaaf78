# ruff: noqa
import json
import logging
from abc import ABC, abstractmethod

import boto3

log = logging.getLogger(__name__)


class BaseWorker(ABC):
    queue_url: str

    def __init__(self) -> None:
        self.sqs = boto3.client("sqs")

    def run(self) -> None:
        while True:
            response = self.sqs.receive_message(
                QueueUrl=self.queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=20
            )
            for message in response.get("Messages", []):
                try:
                    self.process(json.loads(message["Body"]))
                except Exception:
                    log.exception("failed, will come back")
                    continue
                self.sqs.delete_message(QueueUrl=self.queue_url, ReceiptHandle=message["ReceiptHandle"])

    @abstractmethod
    def process(self, body: dict) -> None: ...
