# ruff: noqa
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Callable
import boto3
from app.workers.base import BaseWorker

class SqsConsumerWorker(BaseWorker):
    def __init__(self, queue_url: str, region: str, handler: Callable[[dict], None]):
        super().__init__("sqs")
        self.queue_url = queue_url
        self.handler = handler
        self.sqs = boto3.client("sqs", region_name=region)
        self.pool = ThreadPoolExecutor(8)

    def _one(self, message):
        self.handler(json.loads(message["Body"]))
        self.sqs.delete_message(QueueUrl=self.queue_url, ReceiptHandle=message["ReceiptHandle"])

    def run(self):
        while not self.stopped.is_set():
            response = self.sqs.receive_message(QueueUrl=self.queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
            list(self.pool.map(self._one, response.get("Messages", [])))
