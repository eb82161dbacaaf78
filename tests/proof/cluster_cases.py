"""The clusters of `make prove LONG=1`: how each is started, what the worker uses of it, and what is done to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import effectonce as eo
from tests.harness.kafka_cluster import kafka_cluster
from tests.harness.nats_cluster import nats_cluster
from tests.harness.postgres_pair import postgres_pair
from tests.harness.rabbitmq_cluster import rabbitmq_cluster
from tests.harness.redis_cluster import redis_cluster
from tests.harness.sentinel import sentinel
from tests.inbox.conftest import EFFECTS
from tests.proof.prove_clusters import LEASE_S, ClusterCase, Nemesis

PAUSE_S = 2 * LEASE_S


class Cluster(Protocol):
    """What every cluster of the harness can have done to it."""

    @property
    def url(self) -> str: ...

    def fail_over(self) -> None: ...

    def pause(self, seconds: float) -> None: ...

    def roll(self) -> None: ...


def list_nemeses(cluster: Cluster) -> list[Nemesis]:
    return [
        ("kill -9", cluster.fail_over),
        ("pause", lambda: cluster.pause(PAUSE_S)),
        ("rolling restart", cluster.roll),
    ]


@contextmanager
def _postgres(folder: str, *, synchronous: bool) -> Iterator[ClusterCase]:
    import psycopg

    with postgres_pair(synchronous=synchronous) as pair:
        with psycopg.connect(pair.url, autocommit=True) as connection:
            connection.execute(EFFECTS["postgresql"].encode())
            connection.execute(eo.Inbox(scope="any").schema_sql("postgresql").encode())

        def list_rows() -> list[str]:
            with psycopg.connect(pair.url) as connection:
                return [name for (name,) in connection.execute("SELECT name FROM effects")]

        yield ClusterCase(
            broker=f"sqlite:///{folder}/queue.db",
            nemeses=[*list_nemeses(pair), ("isolation", lambda: pair.isolate(PAUSE_S))],
            connect=lambda: psycopg.connect(pair.url),
            count_rows=list_rows,
        )


@contextmanager
def _redis_sentinel(folder: str) -> Iterator[ClusterCase]:
    options = ("--appendonly", "yes", "--min-replicas-to-write", "1", "--min-replicas-max-lag", "1")
    with sentinel(*options) as shop:

        def fail_over() -> None:
            shop.fail_over()
            shop.rejoin()

        nemeses: Sequence[Nemesis] = [
            ("kill -9", fail_over),
            ("pause", lambda: shop.pause(PAUSE_S)),
            ("rolling restart", shop.roll),
        ]
        yield ClusterCase(broker=f"sqlite:///{folder}/queue.db", store=shop.url, nemeses=nemeses)


@contextmanager
def _as_store(folder: str, make: Callable[[], Any]) -> Iterator[ClusterCase]:
    with make() as cluster:
        yield ClusterCase(broker=f"sqlite:///{folder}/queue.db", store=cluster.url, nemeses=list_nemeses(cluster))


@contextmanager
def _as_broker(folder: str, make: Callable[[], Any], options: str = "") -> Iterator[ClusterCase]:
    with make() as cluster:
        store = f"sqlite:///{folder}/store.db"
        nemeses = list_nemeses(cluster)
        yield ClusterCase(broker=f"{cluster.url}{options}", store=store, nemeses=nemeses, keeps_records=False)


#: By name: the mode, and the case in a folder. An asynchronous one has to lose: the count would else prove nothing.
CASES: dict[str, tuple[str, Callable[[str], AbstractContextManager[ClusterCase]]]] = {
    "postgres, synchronous": ("T", lambda folder: _postgres(folder, synchronous=True)),
    "postgres, asynchronous": ("T", lambda folder: _postgres(folder, synchronous=False)),
    "redis sentinel": ("L", _redis_sentinel),
    "redis cluster": ("L", lambda folder: _as_store(folder, lambda: redis_cluster(replicas=1))),
    "nats, 3 replicas": ("L", lambda folder: _as_broker(folder, nats_cluster, "&ack_window=5s")),
    "rabbitmq, 3 replicas": ("L", lambda folder: _as_broker(folder, rabbitmq_cluster)),
    "kafka, 3 replicas": ("L", lambda folder: _as_broker(folder, kafka_cluster, "?session_timeout=5s")),
}
MUST_LOSE = frozenset(("postgres, asynchronous",))
