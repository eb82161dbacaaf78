# ruff: noqa
# expect file: EO103
import json, pika, smtplib
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
engine = create_engine("postgresql://")
def on_msg(ch, method, props, body):
    m = json.loads(body)
    with smtplib.SMTP("h") as s:
        s.sendmail("a", m["to"], m["text"])
    try:
        with engine.begin() as c:
            c.execute(text("INSERT INTO processed_messages (id) VALUES (:i)"), {"i": m["id"]})
    except IntegrityError:
        pass
    ch.basic_ack(method.delivery_tag)
ch = pika.BlockingConnection().channel()
ch.basic_consume("q", on_msg)
