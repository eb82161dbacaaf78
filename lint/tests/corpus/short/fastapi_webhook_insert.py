# ruff: noqa
# expect file: P11
from fastapi import FastAPI, Request
import asyncpg
app = FastAPI()
@app.on_event("startup")
async def startup():
    app.state.pool = await asyncpg.create_pool(dsn="postgres://")
@app.post("/webhook/payment")
async def payment_webhook(request: Request):
    data = await request.json()
    async with request.app.state.pool.acquire() as conn:
        await conn.execute("INSERT INTO payments (order_id, amount) VALUES ($1, $2)", data["order_id"], data["amount"])
    return {"status": "ok"}
