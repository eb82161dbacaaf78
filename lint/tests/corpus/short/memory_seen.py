# ruff: noqa
# expect file: EO104
import json

import requests
from kafka import KafkaConsumer


class Dedup:
    def __init__(self):
        self.ids = set()

    def first(self, key):
        if key in self.ids:
            return False
        self.ids.add(key)
        return True


dedup = Dedup()


def main():
    consumer = KafkaConsumer("parcels", group_id="p", enable_auto_commit=False)
    for record in consumer:
        parcel = json.loads(record.value)
        if dedup.first(parcel["id"]):
            requests.post("https://carrier.example/parcels", json=parcel, timeout=5)
        consumer.commit()
