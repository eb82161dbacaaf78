# ruff: noqa
# expect file: clean
import effectonce as eo
import psycopg
from celery import shared_task

inbox = eo.Inbox(scope="wallet")


class Wallets:
    def __init__(self, conn):
        self.conn = conn

    def credit(self, wallet, cents):
        self.conn.execute("UPDATE wallets SET cents = cents + %s WHERE id = %s", (cents, wallet))


@shared_task
def won(event_id, wallet, cents):
    with psycopg.connect("dbname=x") as conn:
        if inbox.first(conn, event_id):
            Wallets(conn).credit(wallet, cents)
