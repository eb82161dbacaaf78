# ruff: noqa
# expect file: clean
from celery import shared_task
import json
from app.db import Session
from app.models import Order, OutboxEvent, ProcessedMessage
from sqlalchemy.exc import IntegrityError
@shared_task
def complete(message_id, order_id):
    session = Session()
    try:
        session.add(ProcessedMessage(message_id=message_id))
        session.flush()
    except IntegrityError:
        session.rollback()
        return
    order = session.get(Order, order_id)
    order.status = "complete"
    session.add(OutboxEvent(topic="orders", payload=json.dumps({"id": order_id})))
    session.commit()
