# ruff: noqa
# expect file: EO402
import psycopg
import requests
from celery import shared_task


class Wallets:
    def __init__(self, conn):
        self.conn = conn

    def hold(self, transfer_id, wallet, cents):
        with self.conn.transaction():
            new = self.conn.execute(
                "INSERT INTO holds (transfer_id) VALUES (%s) ON CONFLICT DO NOTHING", (transfer_id,)
            ).rowcount
            if new:
                self.conn.execute("UPDATE wallets SET cents = cents - %s WHERE id = %s", (cents, wallet))

    def give_back(self, wallet, cents):
        with self.conn.transaction():
            self.conn.execute("UPDATE wallets SET cents = cents + %s WHERE id = %s", (cents, wallet))


@shared_task(acks_late=True)
def transfer(transfer_id, wallet, cents):
    wallets = Wallets(psycopg.connect("dbname=x"))
    wallets.hold(transfer_id, wallet, cents)
    try:
        requests.put(f"https://bank.example/transfers/{transfer_id}", json={"cents": cents}, timeout=5).raise_for_status()
    except requests.HTTPError:
        wallets.give_back(wallet, cents)
        raise
