# ruff: noqa
from app.uow import UnitOfWork
from app.db import factory
def get_uow():
    return UnitOfWork(factory)
