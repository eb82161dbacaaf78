# ruff: noqa
# expect file: EO201
from kafka import KafkaConsumer
import json
from billing import settle
consumer = KafkaConsumer('orders', group_id='g', enable_auto_commit=True)
for message in consumer:
    settle(json.loads(message.value))
