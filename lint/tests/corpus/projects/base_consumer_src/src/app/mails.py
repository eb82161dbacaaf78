# ruff: noqa
# expect file: P11
from app.base import Base
from app.smtp import deliver


class Mails(Base):
    topic = "mails"

    async def handle(self, event):
        await deliver(event["to"], event["text"])
