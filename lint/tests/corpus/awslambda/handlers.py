# ruff: noqa
"""Lambda behind SQS, SNS and EventBridge."""

import json
import os
import uuid

import boto3
import stripe
from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent,
    idempotent_function,
)

logger = Logger()
persistence = DynamoDBPersistenceLayer(table_name="idempotency")
processor = BatchProcessor(event_type=EventType.SQS)
table = boto3.resource("dynamodb").Table(os.environ["ORDERS"])
sns = boto3.client("sns")


def charge_handler(event, context):  # expect: P11, EO303
    for record in event["Records"]:
        body = json.loads(record["body"])
        stripe.Charge.create(amount=body["amount"], currency="usd", source=body["token"])
    return {"statusCode": 200}


def charge_keyed_handler(event, context):  # expect: clean
    for record in event["Records"]:
        body = json.loads(record["body"])
        stripe.Charge.create(
            amount=body["amount"], currency="usd", source=body["token"], idempotency_key=body["payment_id"]
        )


def charge_keyed_by_receipt(event, context):  # expect: EO301
    for record in event["Records"]:
        body = json.loads(record["body"])
        stripe.Charge.create(
            amount=body["amount"], currency="usd", source=body["token"], idempotency_key=record["receiptHandle"][:255]
        )


@idempotent(persistence_store=persistence, config=IdempotencyConfig(event_key_jmespath="detail.paymentId"))
def whole_event_handler(event, context):  # expect: clean
    detail = event["detail"]
    stripe.Charge.create(amount=detail["amount"], currency="usd", source=detail["token"])


@idempotent(persistence_store=persistence, config=IdempotencyConfig(event_key_jmespath="Records[0].messageId"))
def wrong_path_handler(event, context):  # expect: EO301
    for record in event["Records"]:
        sns.publish(TopicArn="arn", Message=record["body"])


@idempotent_function(data_keyword_argument="payment", persistence_store=persistence)
def pay(payment):
    stripe.Charge.create(amount=payment["amount"], currency="usd", source=payment["token"])


def inner_guard_handler(event, context):  # expect: clean
    for record in event["Records"]:
        pay(payment=json.loads(record["body"]))


def record_handler(record: SQSRecord):  # expect: P11
    payload = record.json_body
    table.update_item(
        Key={"id": payload["sku"]},
        UpdateExpression="SET stock = stock - :n",
        ExpressionAttributeValues={":n": payload["quantity"]},
    )


def batch_handler(event, context):
    return process_partial_response(event=event, record_handler=record_handler, processor=processor, context=context)


def swallowing_handler(event, context):  # expect: EO202
    for record in event["Records"]:
        try:
            body = json.loads(record["body"])
            table.put_item(Item={"id": body["id"], "state": body["state"]})
        except Exception:
            logger.exception("failed")


def partial_failures_handler(event, context):  # expect: clean
    failures = []
    for record in event["Records"]:
        try:
            body = json.loads(record["body"])
            table.put_item(Item={"id": body["id"], "state": body["state"]})
        except Exception:
            logger.exception("failed")
            failures.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failures}


def fan_out_handler(event, context):  # expect: P11
    for record in event["Records"]:
        message = json.loads(record["Sns"]["Message"])
        sns.publish(TopicArn="arn:aws:sns:eu:1:next", Message=json.dumps(message))


def fifo_fan_out_handler(event, context):  # expect: clean
    queue = boto3.client("sqs")
    for record in event["Records"]:
        message = json.loads(record["body"])
        queue.send_message(
            QueueUrl=os.environ["NEXT"],
            MessageBody=record["body"],
            MessageGroupId=message["customer"],
            MessageDeduplicationId=message["event_id"],
        )


def made_up_id_handler(event, context):  # expect: P11
    orders = boto3.resource("dynamodb").Table("orders")
    queue = boto3.client("sqs")
    for record in event["Records"]:
        message = json.loads(record["body"])
        orders.put_item(Item={"id": message["id"]})
        queue.send_message(QueueUrl="q", MessageBody=record["body"], MessageDeduplicationId=str(uuid.uuid4()))


def api_handler(event, context):
    """Behind an API: no consumer of a queue."""
    return {"statusCode": 200, "body": json.dumps({"path": event["path"]})}
