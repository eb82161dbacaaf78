# ruff: noqa
# expect file: EO106
import redis, requests, boto3, json
r = redis.Redis()
sqs = boto3.client("sqs")
def loop():
    while True:
        for m in sqs.receive_message(QueueUrl="q", VisibilityTimeout=900).get("Messages", []):
            b = json.loads(m["Body"])
            if r.set(f"d:{b['id']}", 1, nx=True, ex=300):
                requests.post("https://x.example/y", json=b)
            sqs.delete_message(QueueUrl="q", ReceiptHandle=m["ReceiptHandle"])
