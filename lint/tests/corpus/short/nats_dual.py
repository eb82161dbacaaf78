# ruff: noqa
# expect file: EO401
import nats, json, asyncpg
async def run():
    nc = await nats.connect()
    js = nc.jetstream()
    pool = await asyncpg.create_pool()
    async def handler(msg):
        d = json.loads(msg.data)
        async with pool.acquire() as c:
            async with c.transaction():
                r = await c.execute("INSERT INTO processed_events(event_id) VALUES($1) ON CONFLICT DO NOTHING", d["event_id"])
                if r.endswith("0"):
                    return
                await c.execute("UPDATE orders SET status='shipped' WHERE id=$1", d["id"])
        await js.publish("orders.shipped", msg.data)
        await msg.ack()
    await js.subscribe("orders.ship", cb=handler)
