# ruff: noqa
# expect file: clean
import json
import pika
from inbox import idempotent
from db import Account

@idempotent
def credit(session, message):
    account = session.get(Account, message["account"], with_for_update=True)
    account.balance += message["cents"]

def callback(ch, method, properties, body):
    credit(json.loads(body))
    ch.basic_ack(method.delivery_tag)

channel = pika.BlockingConnection().channel()
channel.basic_consume("credits", callback)
