# ruff: noqa
# expect file: P11, EO401
from celery import shared_task
from sqlalchemy.orm import Session
from kafka import KafkaProducer
from app import engine
from app.models import Order
producer = KafkaProducer()
@shared_task
def place(order_id):
    with Session(engine) as s:
        o = s.get(Order, order_id)
        o.status = "placed"
        s.commit()
    producer.send("orders", str(order_id).encode())
