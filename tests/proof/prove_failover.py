"""A Redis failover to a stale replica. In mode L, effects whose records the store has lost may happen again."""

from __future__ import annotations

import time
from collections import Counter

import effectonce as eo
from tests.harness.sentinel import Failover
from tests.proof.soak import Tally


def run_stale_failover(shop: Failover, messages: int) -> Tally:
    """Half of the messages reach the replica, half do not; the master dies, and all are delivered again (F28)."""
    tally = Tally(messages, faults=1)
    began = time.monotonic()
    effects: Counter[str] = Counter()
    with eo.RedisStore(client=shop.client(), sweep_every=None) as store:

        @eo.once(store, scope="failover", key="key")
        def effect(key: str) -> None:
            effects[key] += 1

        def deliver(key: str) -> None:
            deadline = time.monotonic() + 30
            while True:
                tally.deliveries += 1
                try:
                    effect(key)
                    return
                except eo.Retryable:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)

        keys = [f"m{number}" for number in range(messages)]
        replicated, unreplicated = keys[: messages // 2], keys[messages // 2 :]
        for key in replicated:
            deliver(key)
        shop.wait_for_replica()
        shop.cut_off()
        for key in unreplicated:
            deliver(key)
        shop.fail_over()
        for key in keys:
            deliver(key)
    tally.effects = effects.total()
    tally.lost = messages - len(effects)
    tally.doubled = tally.effects - len(effects)
    tally.unrecorded = len(unreplicated)
    unexpected = [key for key in keys if effects[key] != (1 if key in replicated else 2)]
    tally.violations += [f"{key} happened {effects[key]} times" for key in unexpected]
    tally.seconds = time.monotonic() - began
    return tally
