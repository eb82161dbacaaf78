# ruff: noqa
# expect file: P11
from celery import shared_task
from peewee import CharField, IntegerField, Model, PostgresqlDatabase

db = PostgresqlDatabase("app")


class Account(Model):
    name = CharField()
    balance = IntegerField(default=0)

    class Meta:
        database = db


@shared_task
def deposit(account_id, n):
    Account.update(balance=Account.balance + n).where(Account.id == account_id).execute()
