"""The parts of the proof that need an hour: order per key, and clusters that fail over. `--only` runs one by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from msgspec import Struct

from tests.harness import servers
from tests.harness.kafka import kafka
from tests.harness.nats import nats
from tests.harness.sqs import elasticmq
from tests.proof.cluster_cases import CASES, MUST_LOSE
from tests.proof.prove_clusters import ClusterRun
from tests.proof.prove_order import OrderProof
from tests.proof.soak import Tally

MESSAGES_PER_KILL = 10_000

Progress = Callable[[float], object]


class LongPart(Struct, frozen=True):
    """One part. ``run`` gets a folder, a seed, how many messages, in how many seconds about, and whom to tell."""

    what: str
    mode: str
    where: str
    share: float  # seconds of ten minutes
    messages: int  # in ten minutes
    least: int  # however short the proof is
    run: Callable[[str, str, int, float, Progress], Tally]
    must_lose: bool = False

    @property
    def name(self) -> str:
        return f"{self.what} {self.mode} {self.where}"


def _run_cluster(case: str, folder: str, seed: str, messages: int, seconds: float, progress: Progress) -> Tally:
    with CASES[case][1](folder) as started:
        return ClusterRun(started, messages, seed).run()


#: By broker: how it is started, the options of its URL, and how many workers share the queue. A single one is not
#: killed: its broker keeps only the queue's order, so what a dead worker had received comes back behind later messages.
ORDERED: dict[str, tuple[Callable[[], Any], str, int]] = {
    "kafka": (kafka, "?session_timeout=3s", 2),
    "sqs fifo": (elasticmq, "&fifo=yes&ack_window=10s", 2),
    "nats": (nats, "?ack_window=10s", 1),
}


def run_order(broker: str, folder: str, seed: str, messages: int, seconds: float, progress: Progress = float) -> Tally:
    """Run the order of one broker of `ORDERED`."""
    make, options, workers = ORDERED[broker]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):  # the SQS server accepts any
        os.environ.setdefault(name, "local")
    with ExitStack() as stack:
        store = stack.enter_context(servers.redis())
        url = f"{stack.enter_context(make()).url}{options}"
        kills = 0 if workers == 1 else max(1, messages // MESSAGES_PER_KILL)
        proof = OrderProof(url, store.url, folder, seed, workers=workers, kills=kills)
        return proof.run(messages, seconds, progress)


PARTS = (
    *(
        LongPart("order per key", "L", broker, 45.0, 34_000, 2_000, partial(run_order, broker))  # an hour: 204,000
        for broker in ORDERED
    ),
    *(
        LongPart("cluster", mode, case, 10.0, 1_700, 1_000, partial(_run_cluster, case), must_lose=case in MUST_LOSE)
        for case, (mode, _) in CASES.items()
    ),
)
