# ruff: noqa
# expect file: P11
from celery import shared_task
from pony.orm import Database, PrimaryKey, Required, db_session

db = Database()


class Wallet(db.Entity):
    id = PrimaryKey(int)
    coins = Required(int)


@shared_task
@db_session
def win(wallet, coins):
    Wallet[wallet].coins += coins
