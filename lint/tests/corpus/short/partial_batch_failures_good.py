# ruff: noqa
# expect file: clean
import json

import boto3

table = boto3.resource("dynamodb").Table("names")


def lambda_handler(event, context):
    failures = []
    for record in event["Records"]:
        try:
            body = json.loads(record["body"])
            table.put_item(Item={"pk": body["user"], "name": body["name"]})
        except Exception:
            failures.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failures}
