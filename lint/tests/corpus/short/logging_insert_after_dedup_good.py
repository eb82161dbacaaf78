# ruff: noqa
# expect file: clean
import psycopg
from celery import shared_task


@shared_task
def credit(event_id, account, cents):
    with psycopg.connect("dbname=x") as conn:
        first = conn.execute(
            "INSERT INTO handled (event_id) VALUES (%s) ON CONFLICT DO NOTHING RETURNING event_id", (event_id,)
        ).fetchone()
        if first is None:
            return
        conn.execute("UPDATE accounts SET cents = cents + %s WHERE id = %s", (cents, account))
        conn.execute("INSERT INTO audit (account, cents) VALUES (%s, %s)", (account, cents))
