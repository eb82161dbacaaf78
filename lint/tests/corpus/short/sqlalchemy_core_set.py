# ruff: noqa
# expect file: clean
import dramatiq
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine

engine = create_engine("postgresql://db")
users = Table("users", MetaData(), Column("id", Integer), Column("name", String))


@dramatiq.actor
def rename(user_id, name):
    with engine.begin() as conn:
        conn.execute(users.update().where(users.c.id == user_id).values(name=name))
