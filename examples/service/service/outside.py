"""Stands for two other companies, and keeps the ledger that the chaos script counts.

The bank books once for each Idempotency-Key, whatever becomes of its answers. The post office takes no keys: a mail
that is sent twice arrives twice. But it can be asked: a mail is listed within two seconds after it was sent, or never.

uvicorn service.outside:app --port 8001
"""

import json
import os
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Header, HTTPException, Response
from pydantic import BaseModel

LEDGER: Final = "outside.db"
#: A mail that is not accepted within this time after it was sent is refused.
LISTED_WITHIN_S: Final = 2.0
#: How long an answer takes at most.
MAX_ANSWER_S: Final = 0.05
#: The share of answers that get lost, after the work is done.
LOST_ANSWERS: Final = float(os.environ.get("SERVICE_LOST_ANSWERS", "0"))
SCHEMA: Final = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, body TEXT, status INTEGER, answer TEXT);
CREATE TABLE IF NOT EXISTS bookings (number INTEGER PRIMARY KEY, kind TEXT, order_id TEXT, amount INTEGER);
CREATE TABLE IF NOT EXISTS mails (number INTEGER PRIMARY KEY, reference TEXT, recipient TEXT, text TEXT);
"""


class Payment(BaseModel):
    order: str
    amount: int
    card: str


class Mail(BaseModel):
    reference: str
    to: str
    text: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with closing(sqlite3.connect(LEDGER)) as db:
        db.executescript(SCHEMA)
    yield


app = FastAPI(title="Bank and post office", lifespan=lifespan)


@contextmanager
def ledger() -> Iterator[sqlite3.Connection]:
    """One transaction at a time. Raising undoes it."""
    with closing(sqlite3.connect(LEDGER, timeout=30, isolation_level=None)) as db, db:
        db.execute("BEGIN IMMEDIATE")
        yield db


@app.post("/charges")
def charge(payment: Payment, idempotency_key: Annotated[str, Header()]) -> Response:
    return book("charge", payment, idempotency_key)


@app.post("/refunds")
def refund(payment: Payment, idempotency_key: Annotated[str, Header()]) -> Response:
    return book("refund", payment, idempotency_key)


def book(kind: Literal["charge", "refund"], payment: Payment, key: str) -> Response:
    """The key, the booking and the answer are one commit."""
    body = payment.model_dump_json()
    with ledger() as db:
        kept = db.execute("SELECT body, status, answer FROM answers WHERE key = ?", (key,)).fetchone()
        if kept is None:
            status, answer = _book_new(db, kind, payment)
            db.execute("INSERT INTO answers VALUES (?, ?, ?, ?)", (key, body, status, answer))
        elif kept[0] != body:
            raise HTTPException(400, "this key was used with another request")
        else:
            _, status, answer = kept
    answer_or_not()
    return Response(answer, status, media_type="application/json")


def _book_new(db: sqlite3.Connection, kind: str, payment: Payment) -> tuple[int, str]:
    if payment.card == "declined":
        return 402, json.dumps({"error": "card_declined"})
    row = (kind, payment.order, payment.amount)
    booked = db.execute("INSERT INTO bookings (kind, order_id, amount) VALUES (?, ?, ?)", row)
    return 200, json.dumps({"id": f"{kind}_{booked.lastrowid}"})


@app.post("/mails", status_code=202)
def accept(mail: Mail, sent_at: Annotated[float, Header()]) -> None:
    with ledger() as db:
        if time.time() - sent_at > LISTED_WITHIN_S:
            raise HTTPException(408, "it came too late, and is not accepted")
        row = (mail.reference, mail.to, mail.text)
        db.execute("INSERT INTO mails (reference, recipient, text) VALUES (?, ?, ?)", row)
    answer_or_not()


@app.get("/mails/{reference}")
def look_up(reference: str) -> dict[str, bool]:
    with ledger() as db:
        return {"accepted": bool(db.execute("SELECT 1 FROM mails WHERE reference = ?", (reference,)).fetchone())}


@app.get("/ledger")
def show() -> dict[str, Any]:
    """All bookings, as (kind, order, amount, id), and the texts of all mails."""
    with ledger() as db:
        bookings = db.execute("SELECT kind, order_id, amount, kind || '_' || number FROM bookings").fetchall()
        return {"bookings": bookings, "mails": [text for (text,) in db.execute("SELECT text FROM mails")]}


def answer_or_not() -> None:
    """What was done is done. But a client may die while it waits for the answer, and some answers never arrive."""
    time.sleep(random.uniform(0, MAX_ANSWER_S))
    if random.random() < LOST_ANSWERS:
        raise HTTPException(504, "done, and the answer is lost")
