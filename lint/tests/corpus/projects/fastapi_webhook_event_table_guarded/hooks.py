# ruff: noqa
# expect file: clean
from fastapi import APIRouter, Request, Header, Depends
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
import stripe
from models import ProcessedEvent, User
from deps import get_session
router = APIRouter()

@router.post("/webhooks/stripe")
async def stripe_hook(request: Request, stripe_signature: str = Header(), session: AsyncSession = Depends(get_session)):
    event = stripe.Webhook.construct_event(await request.body(), stripe_signature, "whsec")
    session.add(ProcessedEvent(id=event["id"]))
    try:
        await session.flush()
    except IntegrityError:
        await session.rollback()
        return {"duplicate": True}
    user = await session.get(User, event["data"]["object"]["client_reference_id"])
    user.credits += event["data"]["object"]["amount_total"]
    await session.commit()
    return {"ok": True}
