# ruff: noqa
import functools
from sqlalchemy.dialects.postgresql import insert
from db import Session, Inbox

def idempotent(fn):
    @functools.wraps(fn)
    def wrapper(message):
        with Session.begin() as session:
            result = session.execute(
                insert(Inbox).values(message_id=message["id"]).on_conflict_do_nothing(index_elements=["message_id"])
            )
            if result.rowcount == 0:
                return None
            return fn(session, message)
    return wrapper
