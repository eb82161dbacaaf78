# ruff: noqa
from kafka import KafkaConsumer
import json
class KafkaLoop:
    def __init__(self, topics, callback):
        self.consumer = KafkaConsumer(*topics, group_id="pay", enable_auto_commit=False, value_deserializer=json.loads)
        self.callback = callback
    def loop(self):
        for record in self.consumer:
            self.callback(record.value)
            self.consumer.commit()
