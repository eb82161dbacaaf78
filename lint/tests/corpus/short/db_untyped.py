# ruff: noqa
# expect file: P11
from celery import shared_task
from app.db import SessionLocal
from app.models import Payment
@shared_task
def record_payment(order_id, amount):
    db = SessionLocal()
    try:
        p = Payment(order_id=order_id, amount=amount)
        db.add(p)
        db.commit()
    finally:
        db.close()
