# ruff: noqa
# expect file: EO102
from celery import shared_task
from app.db import db
@shared_task
def book(message_id, account, amount):
    with db.transaction():
        db.execute("INSERT INTO processed (message_id) VALUES (%s)", message_id)
    with db.transaction():
        db.execute("INSERT INTO ledger (account, amount) VALUES (%s, %s)", account, amount)
