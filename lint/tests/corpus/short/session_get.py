# ruff: noqa
# expect file: EO101, EO103
from sqlalchemy.orm import Session
from celery import shared_task
from app.db import engine
from app.models import ProcessedMessage
import requests
@shared_task
def h(message_id, url):
    with Session(engine) as session:
        if session.get(ProcessedMessage, message_id) is not None:
            return
        requests.post(url, json={"id": message_id})
        session.add(ProcessedMessage(id=message_id))
        session.commit()
