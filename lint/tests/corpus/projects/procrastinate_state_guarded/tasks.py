# ruff: noqa
# expect file: clean
import procrastinate
from db import pool
app = procrastinate.App(connector=procrastinate.PsycopgConnector())

@app.task(queue="orders", retry=3)
async def settle(order_id: int):
    async with pool.connection() as conn, conn.transaction():
        row = await (await conn.execute(
            "UPDATE orders SET status = 'settled' WHERE id = %s AND status = 'pending' RETURNING seller, total", (order_id,)
        )).fetchone()
        if row is None:
            return
        await conn.execute("UPDATE sellers SET balance = balance + %s WHERE id = %s", (row[1], row[0]))
