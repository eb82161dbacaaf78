# ruff: noqa
# expect file: P11
from __future__ import annotations

import asyncio
import logging

import redis.asyncio as aioredis

log = logging.getLogger(__name__)


class StreamConsumer:
    stream: str
    group: str

    def __init__(self, client: aioredis.Redis, name: str) -> None:
        self.client = client
        self.name = name

    async def run(self) -> None:
        while True:
            batches = await self.client.xreadgroup(self.group, self.name, {self.stream: ">"}, count=16, block=5000)
            for _stream, entries in batches:
                for entry_id, fields in entries:
                    try:
                        await self.process(fields)
                    except Exception:
                        log.exception("entry %s stays pending", entry_id)
                    else:
                        await self.client.xack(self.stream, self.group, entry_id)

    async def process(self, fields: dict) -> None:
        raise NotImplementedError


class Likes(StreamConsumer):
    stream = "likes"
    group = "counter"

    async def process(self, fields: dict) -> None:
        await self.client.hincrby("likes:total", fields["post"], 1)
