# ruff: noqa
# expect file: EO201, P11
import pika, json, threading, requests
def work(data):
    requests.post("https://a.example/x", json=data)
def cb(ch, method, props, body):
    t = threading.Thread(target=work, args=(json.loads(body),))
    t.start()
    ch.basic_ack(method.delivery_tag)
ch = pika.BlockingConnection().channel()
ch.basic_consume("q", cb)
