# ruff: noqa
# expect file: P11, EO303
from rq import Queue
from redis import Redis
from square import Square

client = Square(token="x")


def pay(source, cents):
    client.payments.create(source_id=source, amount_money={"amount": cents, "currency": "EUR"})


Queue(connection=Redis()).enqueue(pay, "s", 5)
