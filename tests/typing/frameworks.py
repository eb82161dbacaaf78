"""The types of loops and webhooks. Never executed: `mypy --strict` reads it, and every line is a claim (see `api`)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

import effectonce as eo
from effectonce.agents import tool_once
from effectonce.core.delivery_outcome import Ack, DeliveryOutcome, Redeliver, Reject
from effectonce.core.retry import Retry
from effectonce.guard.dispatch import dispatcher
from effectonce.integrations.aws_lambda import sqs_batch
from effectonce.integrations.webhooks import github, stripe

store = eo.connect("memory://")


@eo.once(store, key="payment_id")
def charge(payment_id: str, amount: int = 1) -> str:
    return payment_id


@eo.once(store, key="payment_id")
async def acharge(payment_id: str) -> int:
    return 1


dispatch = dispatcher(charge, retry=Retry(5))
assert_type(dispatch("p1", amount=2), DeliveryOutcome)
dispatch(7)  # type: ignore[arg-type]
adispatch: Callable[[str], Coroutine[Any, Any, DeliveryOutcome]] = dispatcher(acharge)
match dispatch("p1"):
    case Ack(value=value, replayed=replayed):
        assert_type(replayed, bool)
    case Redeliver(after=after):
        assert_type(after, float)
    case Reject(error=error):
        assert_type(error, Exception)

sqs_batch(charge, read=lambda record: (record["body"], 1))
assert_type(stripe("whsec")(b"", {}), eo.Message[Any])
assert_type(github("secret")(b"", {}).key, str)


@tool_once(store, per="task_id")
def send(task_id: str, text: str) -> int:
    return 1


assert_type(send("t1", "hello"), int)
send("t1")  # type: ignore[call-arg]
