# ruff: noqa
# expect file: clean
import json

from google.cloud import bigquery, pubsub_v1

bq = bigquery.Client()
subscriber = pubsub_v1.SubscriberClient()


def callback(message):
    row = json.loads(message.data)
    bq.insert_rows_json("p.d.sales", [row], row_ids=[row["sale_id"]])
    message.ack()


subscriber.subscribe("projects/p/subscriptions/s", callback=callback).result()
