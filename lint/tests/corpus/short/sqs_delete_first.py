# ruff: noqa
# expect file: EO201
import json
import os

import boto3

sqs = boto3.resource("sqs")
s3 = boto3.client("s3")
queue = sqs.get_queue_by_name(QueueName=os.environ["QUEUE"])


def poll():
    for message in queue.receive_messages(WaitTimeSeconds=10):
        body = message.body
        message.delete()
        doc = json.loads(body)
        s3.put_object(Bucket="docs", Key=doc["id"], Body=body)


while True:
    poll()
