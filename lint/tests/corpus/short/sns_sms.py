# ruff: noqa
# expect file: P11
import json, boto3
sns = boto3.client("sns")
def lambda_handler(event, context):
    for r in event["Records"]:
        m = json.loads(r["body"])
        sns.publish(PhoneNumber=m["phone"], Message="hi")
