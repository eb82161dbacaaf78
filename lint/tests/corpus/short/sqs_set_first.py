# ruff: noqa
# expect file: EO104
import redis, boto3, json
r = redis.Redis()
sqs = boto3.client("sqs")
ses = boto3.client("ses")
while True:
    for m in sqs.receive_message(QueueUrl="q").get("Messages", []):
        body = json.loads(m["Body"])
        if r.sismember("processed", body["id"]):
            continue
        r.sadd("processed", body["id"])
        r.expire("processed", 1209600)
        ses.send_email(Source="a", Destination={"ToAddresses": [body["to"]]}, Message={})
        sqs.delete_message(QueueUrl="q", ReceiptHandle=m["ReceiptHandle"])
