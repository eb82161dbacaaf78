# ruff: noqa
# expect file: P11, EO303
import asyncio, json
import nats
from nats.js.api import ConsumerConfig
import stripe
class RefundService:
    def __init__(self, nc):
        self.js = nc.jetstream()
    async def run(self):
        sub = await self.js.subscribe("refunds.requested", durable="refunds", config=ConsumerConfig(ack_wait=30))
        async for msg in sub.messages:
            try:
                await self.refund(json.loads(msg.data))
            except stripe.error.InvalidRequestError:
                await msg.term()
                continue
            await msg.ack()
    async def refund(self, data):
        await asyncio.to_thread(stripe.Refund.create, payment_intent=data["intent"], amount=data["cents"])
async def main():
    nc = await nats.connect("nats://")
    await RefundService(nc).run()
