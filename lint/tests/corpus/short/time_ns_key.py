# ruff: noqa
# expect file: EO301
import json, time, redis, pika, requests
r = redis.Redis()
def cb(ch, method, properties, body):
    dedup_key = "msg:{}".format(time.time_ns())
    if r.set(dedup_key, 1, nx=True, ex=600):
        requests.post("https://a.example/b", data=body)
    ch.basic_ack(method.delivery_tag)
ch = pika.BlockingConnection().channel()
ch.basic_consume("q", cb)
