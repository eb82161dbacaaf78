# ruff: noqa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy import update
from models import WebhookEvent, Account
def record_event(db, event_id) -> bool:
    result = db.execute(insert(WebhookEvent).values(id=str(event_id)).on_conflict_do_nothing())
    return result.rowcount == 1
def credit(db, email, amount):
    db.execute(update(Account).where(Account.email == email).values(balance=Account.balance + amount))
