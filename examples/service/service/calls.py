"""The calls to other companies. Each is an intent: written down before it is sent, and resumed after a crash.

The bank keeps idempotency keys, so a call of unknown outcome is sent again under its key (mode K). The post office
keeps none (mode I), but it can be asked what it has accepted: a mail of unknown outcome is looked up, and never sent
blindly.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

import httpx
from pydantic import BaseModel

import effectonce as eo
from effectonce.providers import Provider, Verdict

from .database import store
from .settings import LEASE, OUTSIDE

bank: Final = Provider("bank", window="24h")
post_office: Final = Provider("post-office", carrier="none")
#: By its documentation, the post office lists a mail within two seconds after its time of sending, or refuses it. Its
#: clock and the store's differ by less than another second.
LISTED_WITHIN: Final = timedelta(seconds=3)

intents = eo.Intents(store, scope="service")
client = httpx.AsyncClient(base_url=OUTSIDE, timeout=10)


class Payment(BaseModel):
    order: str
    amount: int
    card: str


class Receipt(BaseModel):
    id: str


class Mail(BaseModel):
    to: str
    text: str


@intents.operation(bank, "charge", lease=LEASE)
async def charge(intent: eo.Intent[Payment]) -> Receipt:
    return await _book("/charges", intent)


@intents.operation(bank, "refund", lease=LEASE)
async def refund(intent: eo.Intent[Payment]) -> Receipt:
    return await _book("/refunds", intent)


async def _book(path: str, intent: eo.Intent[Payment]) -> Receipt:
    answer = await client.post(path, json=intent.request.model_dump(), headers=intent.headers)  # with the intent's key
    answer.raise_for_status()  # 402: declined, which is final. 5xx: unknown, so it is sent again
    return Receipt.model_validate(answer.json())


@intents.operation(post_office, "mail", without_key="at-most-once", lease=LEASE)
async def send_mail(intent: eo.Intent[Mail]) -> None:
    body = {"reference": intent.id, **intent.request.model_dump()}
    # A process that is paused here comes too late: the reconciler may have taken its mail for absent meanwhile.
    answer = await client.post("/mails", json=body, headers={"Sent-At": str(intent.first_sent_at.timestamp())})
    answer.raise_for_status()


@intents.reconcile(post_office)
async def look_up(intent: eo.Intent[Mail]) -> Verdict:
    """Was this mail accepted? Its absence is proven only when the time to list it was over before the question."""
    list_is_complete = datetime.now(UTC) > intent.first_sent_at + LISTED_WITHIN
    answer = await client.get(f"/mails/{intent.id}")
    answer.raise_for_status()
    if answer.json()["accepted"]:
        return Verdict.success()
    if list_is_complete:
        return Verdict.not_executed("the post office does not have it")
    return Verdict.pending("the post office may still list it", retry_after=1.0)
