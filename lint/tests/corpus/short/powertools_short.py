# ruff: noqa
# expect file: EO106
import json

import boto3
import requests
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function

sqs = boto3.client("sqs")
layer = DynamoDBPersistenceLayer(table_name="idem")
config = IdempotencyConfig(event_key_jmespath="order_id", expires_after_seconds=300)


@idempotent_function(data_keyword_argument="order", persistence_store=layer, config=config)
def book(order):
    requests.post("https://carrier.example/parcels", json=order, timeout=5)


def main():
    while True:
        got = sqs.receive_message(QueueUrl="q", VisibilityTimeout=3600)
        for message in got.get("Messages", []):
            book(order=json.loads(message["Body"]))
            sqs.delete_message(QueueUrl="q", ReceiptHandle=message["ReceiptHandle"])
