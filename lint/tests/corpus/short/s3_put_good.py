# ruff: noqa
# expect file: clean
import json

import boto3

s3 = boto3.client("s3")


def lambda_handler(event, context):
    for record in event["Records"]:
        body = json.loads(record["body"])
        s3.put_object(Bucket="reports", Key=f"{body['report_id']}.json", Body=record["body"])
