# ruff: noqa
# expect file: clean
import json, boto3, requests
from dedup import Dedup
sqs = boto3.client("sqs")
dedup = Dedup("shipping")
URL = "https://q"

def main():
    while True:
        for m in sqs.receive_message(QueueUrl=URL, WaitTimeSeconds=20).get("Messages", []):
            order = json.loads(m["Body"])
            if dedup.first(order["order_id"]):
                try:
                    requests.post("https://ship/labels", json=order).raise_for_status()
                except Exception:
                    dedup.forget(order["order_id"])
                    raise
            sqs.delete_message(QueueUrl=URL, ReceiptHandle=m["ReceiptHandle"])
