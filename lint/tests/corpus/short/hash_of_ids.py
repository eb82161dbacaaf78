# ruff: noqa
# expect file: clean
import hashlib, redis, pika, requests, json
r = redis.Redis()
def cb(ch, method, properties, body):
    e = json.loads(body)
    key = hashlib.sha256(f"{e['tenant']}:{e['event_id']}".encode()).hexdigest()
    if r.set("msg:" + key, 1, nx=True, ex=600000):
        requests.post("https://a.example/b", data=body)
    ch.basic_ack(method.delivery_tag)
ch = pika.BlockingConnection().channel()
ch.basic_consume("q", cb)
