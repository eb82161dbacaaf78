# ruff: noqa
# expect file: P11
import json

import pika
from elasticsearch import Elasticsearch

es = Elasticsearch("http://es")


def on_event(ch, method, props, body):
    es.index(index="audit", document=json.loads(body))
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("audit", on_event)
