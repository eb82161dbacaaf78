# ruff: noqa
# expect file: P11, EO303
import asyncio
import json

import nats
import resend


async def stream(js):
    sub = await js.pull_subscribe("orders.*", durable="mail")
    while True:
        for msg in await sub.fetch(10):
            yield msg


async def main():
    js = (await nats.connect()).jetstream()
    async for msg in stream(js):
        order = json.loads(msg.data)
        resend.Emails.send({"to": order["email"], "subject": "Thanks", "html": "x"})
        await msg.ack()


asyncio.run(main())
