# ruff: noqa
# expect file: EO401
import json, pika
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from models import Order, ProcessedMessage
Session = sessionmaker(bind=create_engine("postgresql://"))
def handle(ch, method, properties, body):
    data = json.loads(body)
    session = Session()
    try:
        session.add(ProcessedMessage(message_id=properties.message_id))
        order = session.query(Order).get(data["order_id"])
        order.status = "CONFIRMED"
        session.commit()
    except Exception:
        session.rollback()
        raise
    ch.basic_publish(exchange="orders", routing_key="order.confirmed", body=json.dumps({"id": data["order_id"]}))
    ch.basic_ack(delivery_tag=method.delivery_tag)
pika.BlockingConnection().channel().basic_consume("q", handle)
