# ruff: noqa
# expect file: P11
from functools import cached_property

import httpx
from faststream.kafka import KafkaBroker

broker = KafkaBroker()


class Crm:
    @cached_property
    def http(self):
        return httpx.AsyncClient(base_url="https://crm.example")

    async def note(self, text):
        await self.http.post("/notes", json={"text": text})


crm = Crm()


@broker.subscriber("calls")
async def called(event: dict):
    await crm.note(event["text"])
