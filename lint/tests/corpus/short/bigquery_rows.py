# ruff: noqa
# expect file: P11
import json

from google.cloud import bigquery, pubsub_v1

bq = bigquery.Client()
subscriber = pubsub_v1.SubscriberClient()


def callback(message):
    row = json.loads(message.data)
    errors = bq.insert_rows_json("p.d.sales", [row])
    if errors:
        message.nack()
        return
    message.ack()


subscriber.subscribe("projects/p/subscriptions/s", callback=callback).result()
