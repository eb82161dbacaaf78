# ruff: noqa
# expect file: P11
import json
from nats.aio.client import Client as NATS
from clickhouse_driver import Client
from repo import LedgerRepo

class Listener:
    def __init__(self, repo: LedgerRepo):
        self.repo = repo

    async def start(self):
        nc = NATS()
        await nc.connect("nats://localhost:4222")
        js = nc.jetstream()

        async def callback(msg):
            await self.repo.append(json.loads(msg.data))
            await msg.ack()

        await js.subscribe("ledger.*", durable="ledger", cb=callback, manual_ack=True)
