# ruff: noqa
# expect file: EO202
import json
import logging

import boto3

table = boto3.resource("dynamodb").Table("names")


def lambda_handler(event, context):
    done = 0
    for record in event["Records"]:
        try:
            body = json.loads(record["body"])
            table.put_item(Item={"pk": body["user"], "name": body["name"]})
            done += 1
        except Exception:
            logging.exception("skipped %s", record["messageId"])
    return {"done": done}
