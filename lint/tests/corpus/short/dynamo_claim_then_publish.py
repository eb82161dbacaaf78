# ruff: noqa
# expect file: EO401
import json

import boto3
from botocore.exceptions import ClientError

table = boto3.resource("dynamodb").Table("orders")
events = boto3.client("events")


def lambda_handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        try:
            table.put_item(Item={"pk": order["id"]}, ConditionExpression="attribute_not_exists(pk)")
        except ClientError:
            continue
        events.put_events(Entries=[{"Source": "orders", "DetailType": "created", "Detail": record["body"]}])
