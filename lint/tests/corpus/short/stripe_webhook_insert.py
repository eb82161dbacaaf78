# ruff: noqa
# expect file: P11
from fastapi import FastAPI, Request, HTTPException
import stripe, os
from .db import get_db
app = FastAPI()
@app.post("/api/stripe/webhook")
async def wh(request: Request):
    payload = await request.body()
    try:
        event = stripe.Webhook.construct_event(payload, request.headers.get("stripe-signature"), os.environ["S"])
    except Exception as e:
        raise HTTPException(status_code=400, detail=str(e))
    if event["type"] == "invoice.paid":
        db = get_db()
        db.execute("INSERT INTO payments (customer, amount) VALUES (?, ?)", (event["data"]["object"]["customer"], event["data"]["object"]["amount_paid"]))
        db.commit()
    return {"received": True}
