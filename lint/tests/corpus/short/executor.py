# ruff: noqa
# expect file: P11
import boto3, json, requests
from concurrent.futures import ThreadPoolExecutor
sqs = boto3.client("sqs")
def handle(m):
    requests.post("https://a.example/x", json=json.loads(m["Body"]))
    sqs.delete_message(QueueUrl=Q, ReceiptHandle=m["ReceiptHandle"])
def main():
    with ThreadPoolExecutor(4) as pool:
        while True:
            for m in sqs.receive_message(QueueUrl=Q).get("Messages", []):
                pool.submit(handle, m)
