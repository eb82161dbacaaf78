# ruff: noqa
# expect file: P11
import json
import uuid

import boto3

s3 = boto3.client("s3")


def handler(event, context):
    for record in event["Records"]:
        s3.put_object(Bucket="raw", Key=f"events/{uuid.uuid4()}.json", Body=record["body"])
