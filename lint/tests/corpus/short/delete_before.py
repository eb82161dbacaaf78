# ruff: noqa
# expect file: EO201
import boto3, json, psycopg2
sqs = boto3.resource("sqs").Queue("u")
conn = psycopg2.connect("")
def process(d):
    with conn, conn.cursor() as c:
        c.execute("UPDATE t SET a=%s WHERE id=%s", (d["a"], d["id"]))
def loop():
    while True:
        for msg in sqs.receive_messages(MaxNumberOfMessages=10):
            body = json.loads(msg.body)
            msg.delete()
            process(body)
