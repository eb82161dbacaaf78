"""A worker whose process may be killed: ``python -m tests.proof.order_victim PLAN``. A part of its attempts fails
before their effect. An effect is a line in the ledger, in one ``write``: the ordering key and the message's number."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys

import msgspec
from msgspec import Struct

import effectonce as eo

PREFETCH = 200


class OrderPlan(Struct, frozen=True):
    """What a victim does, which its process gets as JSON."""

    broker: str
    store: str
    queue: str
    ledger: str
    failure_rate: float


def main() -> None:
    logging.disable()  # failures are expected, and counted
    plan = msgspec.json.decode(sys.argv[1], type=OrderPlan)
    ledger = os.open(plan.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    store = eo.connect(plan.store, sweep_every=None)
    worker = eo.Worker(eo.connect_broker(plan.broker), store=store, name="order", prefetch=PREFETCH, drain="5s")
    retry = eo.Retry(None, first="50ms", cap="400ms", max_crashes=1000)

    @worker.handler(plan.queue, concurrency=16, lease="5s", retry=retry)
    async def effect(message: eo.Message[int]) -> None:
        await asyncio.sleep(0)
        if random.random() < plan.failure_rate:
            raise ConnectionError("this attempt fails")
        os.write(ledger, f"{message.ordering_key} {message.data}\n".encode())

    worker.run()


if __name__ == "__main__":
    main()
