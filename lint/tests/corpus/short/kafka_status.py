# ruff: noqa
# expect file: clean
from kafka import KafkaConsumer
import psycopg2, json
conn = psycopg2.connect(DSN)
consumer = KafkaConsumer('orders', group_id='g', enable_auto_commit=False, value_deserializer=lambda m: json.loads(m))
for message in consumer:
    order = message.value
    with conn:
        with conn.cursor() as cur:
            cur.execute("UPDATE orders SET status = %s WHERE id = %s", ("PAID", order["id"]))
    consumer.commit()
