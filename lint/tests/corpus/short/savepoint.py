# ruff: noqa
# expect file: clean
from celery import shared_task
from sqlalchemy.orm import Session
from sqlalchemy.exc import IntegrityError
from app import engine
from app.models import ProcessedMessage, Ledger
@shared_task
def book(message_id, account, amount):
    with Session(engine) as session:
        try:
            with session.begin_nested():
                session.add(ProcessedMessage(message_id=message_id))
        except IntegrityError:
            return
        session.add(Ledger(account=account, amount=amount))
        session.commit()
