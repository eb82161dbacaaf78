# ruff: noqa
# expect file: clean
import boto3, json
s3 = boto3.client("s3")
def handler(event, context):
    for r in event["Records"]:
        b = json.loads(r["body"])
        s3.put_object(Bucket="x", Key=f"orders/{b['id']}.json", Body=json.dumps(b))
