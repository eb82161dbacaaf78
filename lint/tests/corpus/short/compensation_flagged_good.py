# ruff: noqa
# expect file: clean
import psycopg
import requests
from celery import shared_task


def undo_hold(conn, transfer_id, wallet, cents):
    with conn.transaction():
        released = conn.execute("UPDATE holds SET state = 'released' WHERE id = %s AND state = 'held'", (transfer_id,))
        if released.rowcount == 1:
            conn.execute("UPDATE wallets SET cents = cents + %s WHERE id = %s", (cents, wallet))


@shared_task(acks_late=True)
def transfer_failed(transfer_id, wallet, cents):
    undo_hold(psycopg.connect("dbname=x"), transfer_id, wallet, cents)
