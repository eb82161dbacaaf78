# ruff: noqa
"""FastAPI endpoints that providers call, again and again until they get a 2xx."""

import hashlib
import hmac
import logging
from typing import Annotated

import httpx
import redis.asyncio as redis
import stripe
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from sqlalchemy import insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from .models import Account, Payment, ProcessedWebhook, Subscription

log = logging.getLogger(__name__)
app = FastAPI()
router = APIRouter(prefix="/webhooks")
engine = create_async_engine("postgresql+asyncpg://localhost/shop")
SessionLocal = async_sessionmaker(engine, expire_on_commit=False)
cache = redis.from_url("redis://localhost")


async def get_session():
    async with SessionLocal() as session:
        yield session


Session = Annotated[AsyncSession, Depends(get_session)]


@app.post("/webhooks/stripe")
async def stripe_webhook(request: Request, session: AsyncSession = Depends(get_session)):  # expect: P11
    payload = await request.body()
    event = stripe.Webhook.construct_event(payload, request.headers["stripe-signature"], "whsec")
    if event["type"] == "invoice.paid":
        session.add(Payment(customer=event["data"]["object"]["customer"], amount=event["data"]["object"]["amount"]))
        await session.commit()
    return {"ok": True}


@router.post("/stripe/deduplicated")
async def stripe_webhook_once(request: Request, session: Session):  # expect: clean
    event = stripe.Webhook.construct_event(await request.body(), request.headers["stripe-signature"], "whsec")
    statement = pg_insert(ProcessedWebhook).values(event_id=event["id"]).on_conflict_do_nothing()
    result = await session.execute(statement)
    if result.rowcount == 0:
        return {"duplicate": True}
    session.add(Payment(customer=event["data"]["object"]["customer"], amount=event["data"]["object"]["amount"]))
    await session.commit()
    return {"ok": True}


@router.post("/stripe/checked")
async def stripe_webhook_checked(request: Request, session: Session):  # expect: EO101, EO103
    event = stripe.Webhook.construct_event(await request.body(), request.headers["stripe-signature"], "whsec")
    known = await session.scalar(select(ProcessedWebhook).where(ProcessedWebhook.event_id == event["id"]))
    if known:
        return {"duplicate": True}
    async with httpx.AsyncClient() as client:
        await client.post("https://crm.example/customers", json=event["data"])
    session.add(ProcessedWebhook(event_id=event["id"]))
    await session.commit()
    return {"ok": True}


@router.post("/github")
async def github_hook(request: Request, x_hub_signature_256: str = Header()):  # expect: P11
    body = await request.body()
    expected = hmac.new(b"secret", body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(f"sha256={expected}", x_hub_signature_256):
        raise HTTPException(403)
    async with httpx.AsyncClient() as client:
        await client.post("https://chat.example/messages", json={"text": "push"})
    return {"ok": True}


@router.post("/subscriptions")
async def subscription_changed(event: dict, session: Session):  # expect: clean
    await session.execute(
        update(Subscription).where(Subscription.id == event["subscription"]).values(status=event["status"])
    )
    await session.commit()


@router.post("/topup")
async def top_up(event: dict, session: Session):  # expect: P11
    await session.execute(
        update(Account).where(Account.id == event["account"]).values(balance=Account.balance + event["amount"])
    )
    await session.commit()


@router.post("/topup/unique")
async def top_up_unique(event: dict, session: Session):  # expect: clean
    try:
        await session.execute(insert(ProcessedWebhook).values(event_id=event["id"]))
        await session.execute(
            text("UPDATE accounts SET balance = balance + :amount WHERE id = :account"),
            {"amount": event["amount"], "account": event["account"]},
        )
        await session.commit()
    except IntegrityError:
        await session.rollback()
    return {"ok": True}


@router.post("/swallow")
async def swallowing_webhook(event: dict, session: Session):  # expect: EO202
    try:
        await session.execute(
            update(Subscription).where(Subscription.id == event["subscription"]).values(status=event["status"])
        )
        await session.commit()
    except Exception:
        log.exception("webhook failed")
    return {"ok": True}


@router.post("/answer500")
async def failing_webhook(event: dict, session: Session):  # expect: clean
    try:
        await session.execute(
            update(Subscription).where(Subscription.id == event["subscription"]).values(status=event["status"])
        )
        await session.commit()
    except Exception as error:
        log.exception("webhook failed")
        raise HTTPException(status_code=500) from error
    return {"ok": True}


@router.post("/cached")
async def cached_webhook(event: dict):  # expect: clean
    if not await cache.set(f"webhook:{event['id']}", 1, nx=True, ex=1_209_600):
        return {"duplicate": True}
    async with httpx.AsyncClient() as client:
        await client.post("https://crm.example/customers", json=event)
    return {"ok": True}


@app.post("/orders")
async def create_order(order: dict, session: Session):
    """An endpoint that people call: no consumer."""
    session.add(Payment(customer=order["customer"], amount=order["amount"]))
    await session.commit()


@app.get("/webhooks")
async def list_webhooks(session: Session):
    return (await session.scalars(select(ProcessedWebhook))).all()
