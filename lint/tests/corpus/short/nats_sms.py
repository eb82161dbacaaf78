# ruff: noqa
# expect file: P11
import nats, json, asyncio
from nats.aio.client import Client as NATS
from twilio.rest import Client
tw = Client()
async def main():
    nc = await nats.connect("demo")
    js = nc.jetstream()
    psub = await js.pull_subscribe("sms", "worker")
    while True:
        msgs = await psub.fetch(5)
        for msg in msgs:
            d = json.loads(msg.data.decode())
            tw.messages.create(to=d["to"], from_="+1", body=d["text"])
            await msg.ack()
asyncio.run(main())
