# ruff: noqa
# expect file: clean
from huey import RedisHuey
from peewee import CharField, IntegerField, Model, SqliteDatabase

db = SqliteDatabase("x.db")
huey = RedisHuey("x")


class Arrival(Model):
    message = CharField(unique=True)

    class Meta:
        database = db


class Shelf(Model):
    items = IntegerField()

    class Meta:
        database = db


@huey.task(retries=3)
def arrived(message, shelf, n):
    with db.atomic():
        if Arrival.insert(message=message).on_conflict(action="IGNORE").as_rowcount().execute():
            Shelf.update(items=Shelf.items + n).where(Shelf.id == shelf).execute()
