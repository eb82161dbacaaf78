# ruff: noqa
# expect file: EO202
import boto3, json, psycopg2
sqs = boto3.resource("sqs").Queue("u")
conn = psycopg2.connect("")
def loop():
    while True:
        for msg in sqs.receive_messages(MaxNumberOfMessages=10):
            try:
                d = json.loads(msg.body)
                with conn, conn.cursor() as c:
                    c.execute("UPDATE t SET a=%s WHERE id=%s", (d["a"], d["id"]))
            except Exception:
                pass
            msg.delete()
