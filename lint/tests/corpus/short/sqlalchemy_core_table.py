# ruff: noqa
# expect file: P11
import dramatiq
from sqlalchemy import Column, Integer, MetaData, Table, create_engine

engine = create_engine("postgresql://db")
accounts = Table("accounts", MetaData(), Column("id", Integer), Column("cents", Integer))


@dramatiq.actor
def deposit(account_id, cents):
    with engine.begin() as conn:
        conn.execute(accounts.update().where(accounts.c.id == account_id).values(cents=accounts.c.cents + cents))
