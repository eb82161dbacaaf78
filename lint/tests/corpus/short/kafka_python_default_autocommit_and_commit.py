# ruff: noqa
# expect file: EO201
import json

from kafka import KafkaConsumer
from pymongo import MongoClient

users = MongoClient().app.users
consumer = KafkaConsumer("users", bootstrap_servers="k", group_id="users")

for record in consumer:
    user = json.loads(record.value)
    users.replace_one({"_id": user["id"]}, user, upsert=True)
    consumer.commit()
