# ruff: noqa
# expect file: clean
import json

import effectonce as eo
import pika
import requests

store = eo.connect("redis://r/0")


def on_parcel(ch, method, props, body):
    parcel = json.loads(body)
    with eo.block(store, scope="parcels", key=parcel["id"]) as run:
        if run:
            requests.post("https://carrier.example/parcels", json=parcel, timeout=5)
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("parcels", on_parcel)
