"""Rules about the key: it identifies the operation, so it must come from the requester."""

from __future__ import annotations

from . import Rule

RULES = [
    Rule(
        id="EO301",
        name="unstable-key",
        severity="error",
        summary="The key differs between deliveries: a delivery tag, a receipt handle, a broker's id, uuid4(), now().",
        why="""\
A duplicate is recognised by its key. Delivery tags and receipt handles are new for each delivery. A broker's MessageId
or offset is new for each send and each redrive. An id that the handler makes is new for each run. With such a key,
every duplicate looks like a new message.""",
        bad="""\
import uuid

import stripe
from celery import shared_task


@shared_task
def charge(payment_id, amount):
    stripe.Charge.create(amount=amount, currency="eur", idempotency_key=str(uuid.uuid4()))
""",
        good="""\
import stripe
from celery import shared_task


@shared_task
def charge(payment_id, amount):
    stripe.Charge.create(amount=amount, currency="eur", idempotency_key=f"charge:{payment_id}")
""",
        modes="Any: the key is the id that the producer made, or a business key such as (tenant, order).",
    ),
    Rule(
        id="EO302",
        name="payload-key",
        severity="warning",
        summary="The key is made of the payload alone, so two intended, identical requests count as one.",
        why="""\
The same customer buys the same thing twice. The payloads are equal, and the second order is silently dropped. Only the
sender knows whether it repeats a request or makes a new one, so take the sender's id as the key.""",
        bad="""\
import hashlib
import json

import stripe
from celery import shared_task


@shared_task
def charge(payload):
    key = hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()
    stripe.Charge.create(amount=payload["amount"], currency="eur", idempotency_key=key)
""",
        good="""\
import stripe
from celery import shared_task


@shared_task
def charge(payload):
    key = f"charge:{payload['message_id']}"
    stripe.Charge.create(amount=payload["amount"], currency="eur", idempotency_key=key)
""",
        modes="Any. If you can live with that risk, use `eo.keys.content_hash`.",
    ),
    Rule(
        id="EO303",
        name="missing-provider-key",
        severity="warning",
        summary="A provider that takes an idempotency key is called without one.",
        why="""\
Stripe, PayPal, Square, Adyen and others answer a repeated key with the first result instead of a second charge. It
is the only guard that still works if the consumer dies between the call and its own record.""",
        bad="""\
import stripe
from celery import shared_task


@shared_task
def refund(message_id, charge):
    stripe.Refund.create(charge=charge)
""",
        good="""\
import stripe
from celery import shared_task


@shared_task
def refund(message_id, charge):
    stripe.Refund.create(charge=charge, idempotency_key=f"refund:{message_id}")
""",
        modes="K: `intents.operation` makes the key, logs the call before it is made, and repeats the same key.",
        fix="Adds `idempotency_key=` with the name of the resource and an id of the message, if a local holds one.",
    ),
    Rule(
        id="EO304",
        name="key-per-retry",
        severity="error",
        confidence=0.5,
        summary="Each attempt of a retry makes a new key, so each attempt can succeed.",
        why="""\
The first attempt times out after the provider has charged. The second one has another key, so it charges again. Make
the key before the first attempt, and send the same one with every attempt.""",
        bad="""\
import uuid

import stripe
from tenacity import retry, stop_after_attempt


@retry(stop=stop_after_attempt(5))
def charge(amount):
    return stripe.Charge.create(amount=amount, currency="eur", idempotency_key=str(uuid.uuid4()))
""",
        good="""\
import stripe
from tenacity import retry, stop_after_attempt


@retry(stop=stop_after_attempt(5))
def charge(amount, key):
    return stripe.Charge.create(amount=amount, currency="eur", idempotency_key=key)
""",
        modes="K: `eo.current().provider_key(...)` is the same for every attempt.",
    ),
]
