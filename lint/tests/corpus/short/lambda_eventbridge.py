# ruff: noqa
# expect file: P11
import boto3
ddb = boto3.resource("dynamodb").Table("counters")
def handler(event, context):
    detail = event["detail"]
    ddb.update_item(Key={"id": detail["k"]}, UpdateExpression="SET #c = if_not_exists(#c, :z) + :o", ExpressionAttributeNames={"#c": "count"}, ExpressionAttributeValues={":o": 1, ":z": 0})
