# ruff: noqa
# expect file: EO101, EO103
from celery import shared_task
from app.db import SessionLocal
from app.models import ProcessedEvent
from app.mail import send_invoice_email
@shared_task
def invoice(event_id, email):
    db = SessionLocal()
    if db.query(ProcessedEvent).filter(ProcessedEvent.event_id == event_id).first():
        return
    send_invoice_email(email)
    db.add(ProcessedEvent(event_id=event_id))
    db.commit()
