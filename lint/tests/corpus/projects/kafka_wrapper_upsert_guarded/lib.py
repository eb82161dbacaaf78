# ruff: noqa
from kafka import KafkaConsumer
class Loop:
    def __init__(self, topic, handler):
        self.c = KafkaConsumer(topic, group_id="g", enable_auto_commit=False)
        self.handler = handler
    def forever(self):
        for m in self.c:
            self.handler(m.value)
            self.c.commit()
