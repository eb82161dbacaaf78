# ruff: noqa
# expect file: P11
import json
from mypy_boto3_sqs import SQSClient
from payments import PaymentGateway
class Consumer:
    def __init__(self, sqs: SQSClient, queue_url: str, gateway: PaymentGateway):
        self.sqs, self.queue_url, self.gateway = sqs, queue_url, gateway
    def poll_once(self):
        result = self.sqs.receive_message(QueueUrl=self.queue_url, MaxNumberOfMessages=1)
        for m in result.get("Messages", ()):
            self.gateway.capture(json.loads(m["Body"])["payment_id"])
            self.sqs.delete_message(QueueUrl=self.queue_url, ReceiptHandle=m["ReceiptHandle"])
