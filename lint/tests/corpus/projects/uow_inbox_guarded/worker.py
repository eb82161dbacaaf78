# ruff: noqa
# expect file: clean
import json

import pika

from .uow import AlreadyHandled, UnitOfWork

uow = UnitOfWork("dbname=x")


def on_sale(ch, method, props, body):
    sale = json.loads(body)
    try:
        with uow.once(sale["sale_id"]) as conn:
            conn.execute("UPDATE tills SET cash = cash + %s WHERE id = %s", (sale["cents"], sale["till"]))
    except AlreadyHandled:
        pass
    ch.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection().channel()
channel.basic_consume("sales", on_sale)
