# ruff: noqa
# expect file: P11
from kafka import KafkaConsumer
import psycopg2, json
conn = psycopg2.connect(DSN)
consumer = KafkaConsumer('orders', group_id='g', enable_auto_commit=False, value_deserializer=lambda m: json.loads(m))
for message in consumer:
    order = message.value
    with conn:
        with conn.cursor() as cur:
            cur.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (order["amount"], order["id"]))
    consumer.commit()
