# ruff: noqa
# expect file: EO101, EO103, EO303
import boto3, json, redis, stripe
r = redis.StrictRedis(host="localhost")
sqs = boto3.client("sqs")
def main():
    while True:
        resp = sqs.receive_message(QueueUrl=Q, MaxNumberOfMessages=10)
        for m in resp.get("Messages", []):
            body = json.loads(m["Body"])
            key = "processed:" + body["payment_id"]
            if r.exists(key):
                sqs.delete_message(QueueUrl=Q, ReceiptHandle=m["ReceiptHandle"])
                continue
            stripe.Charge.create(amount=body["amount"], currency="usd", source=body["src"], idempotency_key=None)
            r.set(key, "1", ex=86400 * 7)
            sqs.delete_message(QueueUrl=Q, ReceiptHandle=m["ReceiptHandle"])
if __name__ == "__main__":
    main()
