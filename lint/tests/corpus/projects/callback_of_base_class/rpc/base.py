# ruff: noqa
import json, pika
class BaseRabbit:
    def __init__(self, url):
        self.conn = pika.BlockingConnection(pika.URLParameters(url))
        self.ch = self.conn.channel()
    def consume(self, queue, fn):
        def _wrapped(ch, method, properties, body):
            fn(json.loads(body))
            ch.basic_ack(delivery_tag=method.delivery_tag)
        self.ch.basic_consume(queue=queue, on_message_callback=_wrapped)
        self.ch.start_consuming()
