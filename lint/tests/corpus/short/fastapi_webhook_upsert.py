# ruff: noqa
# expect file: clean
from fastapi import FastAPI, Request
import asyncpg
app = FastAPI()
@app.post("/webhook/payment")
async def payment_webhook(request: Request):
    data = await request.json()
    async with request.app.state.pool.acquire() as conn:
        await conn.execute("""INSERT INTO payments (order_id, amount) VALUES ($1, $2)
            ON CONFLICT (order_id) DO UPDATE SET amount = EXCLUDED.amount""", data["order_id"], data["amount"])
    return {"status": "ok"}
