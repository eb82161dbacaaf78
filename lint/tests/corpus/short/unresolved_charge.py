# ruff: noqa
# expect file: P11
import pika, json
from payments import gateway
def on_payment(ch, method, properties, body):
    data = json.loads(body)
    gateway.charge(data["card"], data["amount"])
    ch.basic_ack(delivery_tag=method.delivery_tag)
conn = pika.BlockingConnection()
chan = conn.channel()
chan.basic_consume(queue="payments", on_message_callback=on_payment, auto_ack=False)
