# ruff: noqa
# expect file: clean
from fastapi import FastAPI, Request
import stripe
from .db import get_db
app = FastAPI()
@app.post("/api/stripe/webhook")
async def wh(request: Request):
    event = stripe.Webhook.construct_event(await request.body(), request.headers.get("stripe-signature"), "s")
    db = get_db()
    cur = db.execute("INSERT OR IGNORE INTO processed_events (id) VALUES (?)", (event["id"],))
    if cur.rowcount == 0:
        return {"duplicate": True}
    db.execute("INSERT INTO payments (customer, amount) VALUES (?, ?)", (event["data"]["object"]["customer"], 1))
    db.commit()
    return {"received": True}
