# ruff: noqa
# expect file: clean
import os, json
import boto3
s3 = boto3.client("s3")
def handler(event, context):
    for record in event["Records"]:
        bucket = record["s3"]["bucket"]["name"]
        key = record["s3"]["object"]["key"]
        obj = s3.get_object(Bucket=bucket, Key=key)
        out = json.dumps({"size": obj["ContentLength"]})
        s3.put_object(Bucket=os.environ["OUT"], Key=key + ".json", Body=out)
