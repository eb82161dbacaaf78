# ruff: noqa
# expect file: clean
import json, logging
from confluent_kafka import Consumer
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
engine = create_engine("postgresql://")
def process(event):
    with engine.begin() as conn:
        conn.execute(text("INSERT INTO consumed_events(event_id) VALUES (:e)"), {"e": event["id"]})
        conn.execute(text("UPDATE balances SET amount = amount + :a WHERE acc = :acc"), {"a": event["amount"], "acc": event["acc"]})
def main():
    c = Consumer({"bootstrap.servers": "x", "group.id": "y", "enable.auto.commit": "false"})
    c.subscribe(["z"])
    while True:
        msg = c.poll(1.0)
        if not msg or msg.error():
            continue
        try:
            process(json.loads(msg.value()))
        except IntegrityError:
            logging.info("dup")
        c.commit(message=msg)
