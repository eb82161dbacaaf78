# ruff: noqa
# expect file: P11
from kafka import KafkaConsumer
import requests
def events():
    c = KafkaConsumer("t", group_id="g", enable_auto_commit=False)
    for m in c:
        yield m.value
        c.commit()
def main():
    for e in events():
        requests.post("https://a.example/x", data=e)
