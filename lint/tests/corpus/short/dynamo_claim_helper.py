# ruff: noqa
# expect file: clean
import json, logging, boto3
from botocore.exceptions import ClientError
table = boto3.resource("dynamodb").Table("idempotency")
ses = boto3.client("ses")
def already_done(event_id):
    try:
        table.put_item(Item={"pk": event_id}, ConditionExpression="attribute_not_exists(pk)")
        return False
    except ClientError as e:
        if e.response["Error"]["Code"] == "ConditionalCheckFailedException":
            return True
        raise
def handler(event, context):
    for record in event["Records"]:
        body = json.loads(record["body"])
        if already_done(body["id"]):
            continue
        ses.send_email(Source="a", Destination={"ToAddresses": [body["to"]]}, Message={})
