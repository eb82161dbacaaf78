# ruff: noqa
# expect file: P11
import psycopg
from dramatiq import actor


class Add:
    def run(self, conn, event):
        conn.execute("UPDATE accounts SET cents = cents + %s WHERE id = %s", (event["cents"], event["account"]))


class Nothing:
    def run(self, conn, event):
        return None


STRATEGIES = dict(add=Add, nothing=Nothing)


@actor
def account_event(event):
    strategy = STRATEGIES.get(event["kind"], Nothing)()
    with psycopg.connect("dbname=x") as conn:
        strategy.run(conn, event)
