# ruff: noqa
# expect file: clean
import stripe
from fastapi import FastAPI, Request

from .tasks import handle_event

app = FastAPI()


@app.post("/stripe/webhook")
async def hook(request: Request):
    event = stripe.Webhook.construct_event(await request.body(), request.headers["Stripe-Signature"], "whsec")
    handle_event.delay(event["id"], event["type"])
    return {"ok": True}
