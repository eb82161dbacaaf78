# ruff: noqa
# expect file: P11
import functools
from celery import shared_task
from sqlalchemy import text
from db import engine
def reliable_task(fn=None, **options):
    def wrap(f):
        return shared_task(f, acks_late=True, autoretry_for=(Exception,), **options)
    return wrap(fn) if fn else wrap
@reliable_task(queue="ledger")
def book(account, cents):
    with engine.begin() as c:
        c.execute(text("INSERT INTO ledger (account, cents) VALUES (:a, :c)"), {"a": account, "c": cents})
