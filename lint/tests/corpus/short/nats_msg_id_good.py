# ruff: noqa
# expect file: clean
import json

import nats


async def main():
    nc = await nats.connect()
    js = nc.jetstream()
    sub = await js.subscribe("in", durable="fwd", manual_ack=True)
    async for msg in sub.messages:
        data = json.loads(msg.data)
        await js.publish("out", msg.data, headers={"Nats-Msg-Id": data["id"]})
        await msg.ack()
