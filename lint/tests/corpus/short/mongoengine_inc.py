# ruff: noqa
# expect file: P11
import dramatiq
from mongoengine import Document, IntField, StringField


class Video(Document):
    slug = StringField(primary_key=True)
    views = IntField(default=0)


@dramatiq.actor
def viewed(slug):
    Video.objects(slug=slug).update_one(inc__views=1)
