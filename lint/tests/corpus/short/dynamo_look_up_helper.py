# ruff: noqa
# expect file: EO101, EO103
import json, boto3
table = boto3.resource("dynamodb").Table("idempotency")
ses = boto3.client("ses")
def was_processed(event_id):
    return "Item" in table.get_item(Key={"pk": event_id})
def remember(event_id):
    table.put_item(Item={"pk": event_id})
def handler(event, context):
    for record in event["Records"]:
        body = json.loads(record["body"])
        if was_processed(body["id"]):
            continue
        ses.send_email(Source="a", Destination={"ToAddresses": [body["to"]]}, Message={})
        remember(body["id"])
