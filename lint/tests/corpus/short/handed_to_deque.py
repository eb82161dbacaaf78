# ruff: noqa
# expect file: EO201, P11
import json
import sqlite3
import threading
import time
from collections import deque

import boto3

sqs = boto3.client("sqs")
buffer = deque()


def flush():
    conn = sqlite3.connect("clicks.db")
    while True:
        while buffer:
            click = buffer.popleft()
            conn.execute("INSERT INTO clicks (url, at) VALUES (?, ?)", (click["url"], click["at"]))
        conn.commit()
        time.sleep(1)


def main():
    threading.Thread(target=flush).start()
    while True:
        for message in sqs.receive_message(QueueUrl="clicks").get("Messages", []):
            buffer.append(json.loads(message["Body"]))
            sqs.delete_message(QueueUrl="clicks", ReceiptHandle=message["ReceiptHandle"])
