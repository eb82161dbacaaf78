# ruff: noqa
# expect file: P11
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
import boto3
import json

ses = boto3.client("ses")
processor = BatchProcessor(event_type=EventType.SQS)


def record_handler(record):
    body = json.loads(record.body)
    ses.send_email(Source="a@example.org", Destination={"ToAddresses": [body["to"]]}, Message={})


def lambda_handler(event, context):
    return process_partial_response(event=event, record_handler=record_handler, processor=processor, context=context)
