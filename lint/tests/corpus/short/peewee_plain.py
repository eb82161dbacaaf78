# ruff: noqa
# expect file: P11
from huey import RedisHuey
from peewee import IntegerField, Model, SqliteDatabase

db = SqliteDatabase("x.db")
huey = RedisHuey("x")


class Shelf(Model):
    items = IntegerField()

    class Meta:
        database = db


@huey.task(retries=3)
def arrived(shelf, n):
    Shelf.update(items=Shelf.items + n).where(Shelf.id == shelf).execute()
