# ruff: noqa
# expect file: clean
import pika, json
from payments import gateway
from infra import idempotency_store
def on_payment(ch, method, properties, body):
    data = json.loads(body)
    if not idempotency_store.claim(data["payment_id"]):
        ch.basic_ack(delivery_tag=method.delivery_tag)
        return
    gateway.charge(data["card"], data["amount"])
    ch.basic_ack(delivery_tag=method.delivery_tag)
conn = pika.BlockingConnection()
chan = conn.channel()
chan.basic_consume(queue="payments", on_message_callback=on_payment, auto_ack=False)
