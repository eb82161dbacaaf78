# ruff: noqa
# expect file: clean
from fastapi import APIRouter, Request
from app.db import database
router = APIRouter()
@router.post("/webhooks/shopify/orders")
async def orders_create(request: Request):
    order = await request.json()
    await database.execute("INSERT INTO orders (shopify_id, total) VALUES (:i, :t) ON CONFLICT (shopify_id) DO UPDATE SET total = excluded.total", {"i": order["id"], "t": order["total_price"]})
    return {"ok": True}
