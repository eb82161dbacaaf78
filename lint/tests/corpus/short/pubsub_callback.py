# ruff: noqa
# expect file: P11
from google.cloud import pubsub_v1
import json, psycopg2
subscriber = pubsub_v1.SubscriberClient()
conn = psycopg2.connect("")
def callback(message):
    d = json.loads(message.data)
    cur = conn.cursor()
    cur.execute("INSERT INTO visits (page, who) VALUES (%s, %s)", (d["page"], d["who"]))
    conn.commit()
    message.ack()
future = subscriber.subscribe("projects/p/subscriptions/s", callback=callback)
