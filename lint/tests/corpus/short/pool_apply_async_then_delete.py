# ruff: noqa
# expect file: EO201, P11
import json
import multiprocessing

import boto3
import requests

sqs = boto3.client("sqs")


def convert(job):
    requests.post("https://video.example/jobs", json=job, timeout=60)


def main():
    pool = multiprocessing.Pool(4)
    while True:
        for message in sqs.receive_message(QueueUrl="videos").get("Messages", []):
            pool.apply_async(convert, (json.loads(message["Body"]),))
            sqs.delete_message(QueueUrl="videos", ReceiptHandle=message["ReceiptHandle"])
