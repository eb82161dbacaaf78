# ruff: noqa
# expect file: P11
from fastapi import APIRouter, Request, BackgroundTasks
from app.services.email import EmailService
from app.db import db
router = APIRouter(prefix="/webhooks")
@router.post("/shopify/orders")
async def orders_create(request: Request, background: BackgroundTasks):
    order = await request.json()
    await db.execute("INSERT INTO orders (shopify_id, total) VALUES (:i, :t)", {"i": order["id"], "t": order["total_price"]})
    return {"ok": True}
