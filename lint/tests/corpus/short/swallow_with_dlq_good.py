# ruff: noqa
# expect file: clean
import json
import logging

import pika
from pymongo import MongoClient

users = MongoClient().app.users


def on_message(ch, method, props, body):
    try:
        user = json.loads(body)
        users.replace_one({"_id": user["id"]}, user, upsert=True)
    except Exception:
        logging.exception("dead-lettering")
        ch.basic_publish("dlx", "users", body)
    ch.basic_ack(method.delivery_tag)


ch = pika.BlockingConnection().channel()
ch.basic_consume("q", on_message)
