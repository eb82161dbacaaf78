# ruff: noqa
# expect file: EO302
import hashlib, redis, pika, requests
r = redis.Redis()
def fingerprint(b: bytes) -> str:
    h = hashlib.sha1()
    h.update(b)
    return h.hexdigest()
def cb(ch, method, properties, body):
    if r.set("msg:" + fingerprint(body), 1, nx=True, ex=600000):
        requests.post("https://a.example/b", data=body)
    ch.basic_ack(method.delivery_tag)
ch = pika.BlockingConnection().channel()
ch.basic_consume("q", cb)
