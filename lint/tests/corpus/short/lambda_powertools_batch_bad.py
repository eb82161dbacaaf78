# ruff: noqa
# expect file: P11
import json

import boto3
from aws_lambda_powertools import Logger, Tracer
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

processor = BatchProcessor(event_type=EventType.SQS)
logger = Logger()
tracer = Tracer()
ses = boto3.client("ses")


@tracer.capture_method
def record_handler(record: SQSRecord):
    payload = record.json_body
    ses.send_email(
        Source="shop@example.com",
        Destination={"ToAddresses": [payload["email"]]},
        Message={"Subject": {"Data": "Order"}, "Body": {"Text": {"Data": payload["text"]}}},
    )


@logger.inject_lambda_context
@tracer.capture_lambda_handler
def lambda_handler(event, context):
    return process_partial_response(event=event, record_handler=record_handler, processor=processor, context=context)
