# ruff: noqa
# expect file: EO103
import json

import boto3
import requests
from botocore.exceptions import ClientError

table = boto3.resource("dynamodb").Table("done")


def lambda_handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        requests.post("https://carrier.example/parcels", json=order, timeout=5)
        try:
            table.put_item(Item={"pk": order["id"]}, ConditionExpression="attribute_not_exists(pk)")
        except ClientError:
            pass
