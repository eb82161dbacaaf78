# ruff: noqa
# expect file: clean
import json

import pika
from bank_private import BankClient

bank = BankClient()


def on_message(channel, method, properties, body):
    transfer = json.loads(body)
    bank.submit(transfer, idempotency_key=transfer["id"])
    channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="transfers", on_message_callback=on_message)
