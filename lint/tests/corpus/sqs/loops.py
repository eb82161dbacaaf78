# ruff: noqa
"""boto3 and SQS."""

import json
import logging
import os

import boto3
from botocore.exceptions import ClientError

log = logging.getLogger()
sqs = boto3.client("sqs", region_name="eu-central-1")
ses = boto3.client("ses")
dynamodb = boto3.resource("dynamodb")
table = dynamodb.Table(os.environ["TABLE"])
processed = dynamodb.Table("processed-messages")
QUEUE_URL = os.environ["QUEUE_URL"]


def poll_and_mail():  # expect: P11
    while True:
        response = sqs.receive_message(QueueUrl=QUEUE_URL, MaxNumberOfMessages=10, WaitTimeSeconds=20)
        for message in response.get("Messages", []):
            order = json.loads(message["Body"])
            ses.send_email(
                Source="shop@example.com",
                Destination={"ToAddresses": [order["email"]]},
                Message={"Subject": {"Data": "Thanks"}, "Body": {"Text": {"Data": "for your order"}}},
            )
            sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])


def poll_and_count():  # expect: P11
    while True:
        response = sqs.receive_message(QueueUrl=QUEUE_URL)
        if "Messages" not in response:
            continue
        for message in response["Messages"]:
            body = json.loads(message["Body"])
            table.update_item(
                Key={"pk": body["sku"]},
                UpdateExpression="ADD stock :n",
                ExpressionAttributeValues={":n": -body["quantity"]},
            )
            sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])


def poll_and_put():  # expect: clean
    while True:
        response = sqs.receive_message(QueueUrl=QUEUE_URL)
        for message in response.get("Messages", []):
            body = json.loads(message["Body"])
            table.put_item(Item={"pk": body["order_id"], "state": body["state"]})
            sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])


def conditional_put():  # expect: clean
    while True:
        response = sqs.receive_message(QueueUrl=QUEUE_URL, VisibilityTimeout=120)
        for message in response.get("Messages", []):
            body = json.loads(message["Body"])
            try:
                processed.put_item(
                    Item={"id": body["event_id"], "ttl": 0}, ConditionExpression="attribute_not_exists(id)"
                )
            except ClientError as error:
                if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
                    raise
                sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])
                continue
            ses.send_email(Source="a@example.com", Destination={"ToAddresses": [body["email"]]}, Message={})
            sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])


def keyed_by_message_id():  # expect: EO301
    while True:
        response = sqs.receive_message(QueueUrl=QUEUE_URL)
        for message in response.get("Messages", []):
            try:
                processed.put_item(
                    Item={"id": message["MessageId"]}, ConditionExpression="attribute_not_exists(id)"
                )
            except ClientError:
                continue
            ses.send_email(Source="a@example.com", Destination={"ToAddresses": ["b@example.com"]}, Message={})
            sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])


def get_then_put():  # expect: EO101, EO103
    while True:
        response = sqs.receive_message(QueueUrl=QUEUE_URL)
        for message in response.get("Messages", []):
            body = json.loads(message["Body"])
            if "Item" in processed.get_item(Key={"id": body["event_id"]}):
                sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])
                continue
            ses.send_email(Source="a@example.com", Destination={"ToAddresses": [body["email"]]}, Message={})
            processed.put_item(Item={"id": body["event_id"]})
            sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])


def delete_first():  # expect: EO201
    while True:
        response = sqs.receive_message(QueueUrl=QUEUE_URL)
        for message in response.get("Messages", []):
            sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])
            body = json.loads(message["Body"])
            table.put_item(Item={"pk": body["order_id"], "state": body["state"]})


def delete_in_except():  # expect: EO202
    while True:
        response = sqs.receive_message(QueueUrl=QUEUE_URL)
        for message in response.get("Messages", []):
            try:
                body = json.loads(message["Body"])
                table.put_item(Item={"pk": body["order_id"], "state": body["state"]})
            except Exception as exc:
                log.error("bad message: %s", exc)
            sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])


def skip_the_delete():  # expect: clean
    while True:
        response = sqs.receive_message(QueueUrl=QUEUE_URL)
        for message in response.get("Messages", []):
            try:
                body = json.loads(message["Body"])
                table.put_item(Item={"pk": body["order_id"], "state": body["state"]})
            except Exception:
                log.exception("it will come again")
                continue
            sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])


def leave_on_queue():  # expect: clean
    while True:
        response = sqs.receive_message(QueueUrl=QUEUE_URL)
        for message in response.get("Messages", []):
            try:
                body = json.loads(message["Body"])
                table.put_item(Item={"pk": body["order_id"], "state": body["state"]})
                sqs.delete_message(QueueUrl=QUEUE_URL, ReceiptHandle=message["ReceiptHandle"])
            except Exception:
                log.exception("it will come again")


class Worker:
    def __init__(self, name):
        self.queue = boto3.resource("sqs").get_queue_by_name(QueueName=name)
        self.topic = boto3.client("sns")

    def run_forever(self):  # expect: P11
        while True:
            for message in self.queue.receive_messages(WaitTimeSeconds=10):
                self.process(message)
                message.delete()

    def process(self, message):
        self.topic.publish(TopicArn="arn:aws:sns:eu:1:orders", Message=message.body)
