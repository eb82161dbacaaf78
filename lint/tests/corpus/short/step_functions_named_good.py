# ruff: noqa
# expect file: clean
import json

import boto3

sfn = boto3.client("stepfunctions")


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        sfn.start_execution(stateMachineArn="arn", name=order["order_id"], input=record["body"])
