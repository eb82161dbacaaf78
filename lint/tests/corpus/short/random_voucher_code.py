# ruff: noqa
# expect file: EO101
import json
import secrets

import psycopg
import nats


async def main():
    nc = await nats.connect()
    js = nc.jetstream()

    async def on_order(msg):
        order = json.loads(msg.data)
        async with await psycopg.AsyncConnection.connect("dbname=x") as conn:
            row = await (await conn.execute("SELECT code FROM vouchers WHERE order_no = %s", (order["no"],))).fetchone()
            if row is None:
                await conn.execute(
                    "INSERT INTO vouchers (code, order_no) VALUES (%s, %s)", (secrets.token_urlsafe(8), order["no"])
                )
        await msg.ack()

    await js.subscribe("orders.paid", cb=on_order, manual_ack=True)
