# ruff: noqa
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
S = sessionmaker(create_engine("x"))
def get_db():
    with S() as s:
        yield s
