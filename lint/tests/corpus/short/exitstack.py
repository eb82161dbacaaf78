# ruff: noqa
# expect file: P11
from contextlib import ExitStack

import psycopg
from celery import shared_task


@shared_task(acks_late=True)
def move(a, b, cents):
    with ExitStack() as stack:
        conn = stack.enter_context(psycopg.connect("dbname=x"))
        cur = stack.enter_context(conn.cursor())
        cur.execute("UPDATE accounts SET cents = cents - %s WHERE id = %s", (cents, a))
        cur.execute("UPDATE accounts SET cents = cents + %s WHERE id = %s", (cents, b))
