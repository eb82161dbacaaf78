# ruff: noqa
# expect file: P11
import base64
import json
import boto3

table = boto3.resource("dynamodb").Table("totals")


def lambda_handler(event, context):
    for record in event["Records"]:
        data = json.loads(base64.b64decode(record["kinesis"]["data"]))
        table.update_item(
            Key={"pk": data["meter"]},
            UpdateExpression="SET kwh = if_not_exists(kwh, :z) + :k",
            ExpressionAttributeValues={":k": data["kwh"], ":z": 0},
        )
