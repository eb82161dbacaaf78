# ruff: noqa
# expect file: P11
import pika, json, requests
class Bus:
    def __init__(self, url):
        self.channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    def subscribe(self, queue, handler):
        self.channel.basic_consume(queue=queue, on_message_callback=lambda ch, m, p, b: self._dispatch(ch, m, b, handler))
    def _dispatch(self, ch, m, b, handler):
        handler(json.loads(b))
        ch.basic_ack(m.delivery_tag)
def handle(order):
    requests.post("https://x.example/y", json=order)
def main():
    bus = Bus("amqp://")
    bus.subscribe("orders", handle)
