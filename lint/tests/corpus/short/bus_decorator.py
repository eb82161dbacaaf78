# ruff: noqa
# expect file: P11
import pika, json, requests
class Bus:
    def __init__(self, url):
        self.channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    def on(self, queue):
        def register(fn):
            def callback(ch, method, props, body):
                fn(json.loads(body))
                ch.basic_ack(method.delivery_tag)
            self.channel.basic_consume(queue=queue, on_message_callback=callback)
            return fn
        return register
bus = Bus("amqp://")
@bus.on("orders")
def handle(order):
    requests.post("https://x.example/y", json=order)
