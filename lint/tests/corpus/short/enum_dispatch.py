# ruff: noqa
# expect file: P11
import enum

import psycopg
from dramatiq import actor


def add(conn, account, cents):
    conn.execute("UPDATE accounts SET cents = cents + %s WHERE id = %s", (cents, account))


def close(conn, account, cents):
    conn.execute("UPDATE accounts SET open = false WHERE id = %s", (account,))


class Kind(enum.Enum):
    ADD = "add"
    CLOSE = "close"


ACTIONS = {Kind.ADD: add, Kind.CLOSE: close}


@actor
def account_event(kind, account, cents):
    with psycopg.connect("dbname=x") as conn:
        ACTIONS[Kind(kind)](conn, account, cents)
