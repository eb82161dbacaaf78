# ruff: noqa
# expect file: P11
import json, os
import psycopg2
def lambda_handler(event, context):
    conn = psycopg2.connect(os.environ["DSN"])
    with conn:
        with conn.cursor() as cur:
            for rec in event.get("Records", []):
                msg = json.loads(rec["body"])
                cur.execute("UPDATE inventory SET on_hand = on_hand - %s WHERE sku = %s", (msg["qty"], msg["sku"]))
    return {"batchItemFailures": []}
