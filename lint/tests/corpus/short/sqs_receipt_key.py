# ruff: noqa
# expect file: EO301
import boto3, json, redis, requests
r = redis.Redis()
sqs = boto3.client("sqs")
while True:
    resp = sqs.receive_message(QueueUrl=Q, MaxNumberOfMessages=10)
    for m in resp.get("Messages", []):
        if not r.set("dedup:%s" % m["ReceiptHandle"], 1, nx=True, ex=3600):
            continue
        requests.post("https://x.example/ship", json=json.loads(m["Body"]))
        sqs.delete_message(QueueUrl=Q, ReceiptHandle=m["ReceiptHandle"])
