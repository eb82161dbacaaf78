# ruff: noqa
# expect file: P11
from beanie import Document
from beanie.operators import Inc
from faststream.kafka import KafkaBroker

broker = KafkaBroker()


class Video(Document):
    slug: str
    views: int = 0


@broker.subscriber("views")
async def viewed(slug: str):
    await Video.find_one(Video.slug == slug).update(Inc({Video.views: 1}))
