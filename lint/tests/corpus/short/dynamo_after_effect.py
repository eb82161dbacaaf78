# ruff: noqa
# expect file: EO103
import boto3, json
ddb = boto3.resource("dynamodb").Table("processed")
ses = boto3.client("ses")
def lambda_handler(event, context):
    for r in event["Records"]:
        b = json.loads(r["body"])
        ses.send_email(Source="a", Destination={"ToAddresses": [b["to"]]}, Message={})
        ddb.put_item(Item={"id": b["id"]}, ConditionExpression="attribute_not_exists(id)")
