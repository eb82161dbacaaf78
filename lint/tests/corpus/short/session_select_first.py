# ruff: noqa
# expect file: EO101, EO103
from celery import shared_task
from sqlalchemy import select
from db import Session
from models import Processed, Outbox
import smtplib
@shared_task
def mail(msg_id, to):
    s = Session()
    existing = s.execute(select(Processed).where(Processed.msg_id == msg_id)).scalar_one_or_none()
    if existing is not None:
        return
    with smtplib.SMTP("h") as smtp:
        smtp.sendmail("a", to, "b")
    s.add(Processed(msg_id=msg_id))
    s.commit()
