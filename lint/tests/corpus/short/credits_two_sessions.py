# ruff: noqa
# expect file: EO102, EO103
from celery import shared_task
from sqlalchemy import select, update
from sqlalchemy.orm import sessionmaker

from .models import Processed, Student

Session = sessionmaker()


def known(event_id):
    with Session() as session:
        return session.get(Processed, event_id) is not None


@shared_task(acks_late=True)
def add(event_id, student, n):
    if known(event_id):
        return
    with Session.begin() as session:
        session.execute(update(Student).where(Student.id == student).values(credits=Student.credits + n))
    with Session.begin() as session:
        session.add(Processed(event_id=event_id))
