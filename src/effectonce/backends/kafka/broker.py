"""Kafka: a queue is a topic, a group a consumer group, an ordering key the key of a record.

Only what is settled without a gap is committed (F53); see `kafka_backlog` for what becomes of the rest. A rebalance
makes the deliveries of revoked partitions stale, and another consumer gets them.

Kafka removes nothing by itself but by age, and cannot remove one record. So dead letters are a topic of their own for
each queue and group, compacted: a dead letter has a key, and removing it writes a tombstone under that key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from effectonce.contracts import BrokerCapabilities, Delivery, Packet
from effectonce.errors import BrokerUnavailable
from effectonce.values.urls import Address

from .client import Cluster, Sender, dead_topic, parse, record_of, topic_name
from .dead_letters import KafkaDeadLetters, letter_of
from .offset_tracker import Backlog
from .reader import Reader
from .topics import check, declare

BATCH: Final = 500


class KafkaBackend:
    """``kafka://host:9092``, or ``kafka://user:password@host:9093`` with SASL over TLS.

    Options: ``bootstrap`` (more brokers, as ``host2:9092,host3:9092``), ``security`` (``plaintext``, ``ssl``,
    ``sasl_plaintext``, ``sasl_ssl``), ``mechanism`` (``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512``), ``ca_file``,
    ``timeout`` (30 s), ``session_timeout`` (45 s: after that long without a sign of life a consumer's partitions go to
    others), ``max_body`` (1 MB); and for the topics that `declare` makes ``partitions`` and ``replication`` (as the
    broker is set), and ``retention`` (7d, or ``unlimited``), the longest time after which a message may still come.
    """

    def __init__(self, address: Address) -> None:
        self._cluster = parse(address)
        self.capabilities = BrokerCapabilities(
            name="kafka",
            ordering="key",
            groups=True,
            redelivery_horizon=self._cluster.retention,
            max_body=self._cluster.max_body,
            batch=BATCH,
        )

    def publisher(self) -> KafkaPublisher:
        return KafkaPublisher(self._cluster)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> KafkaConsumer:
        return KafkaConsumer(self._cluster, topic_name(queue), topic_name(group, "group"), prefetch)

    def dead_letters(self, queue: str, *, group: str) -> KafkaDeadLetters:
        return KafkaDeadLetters(self._cluster, topic_name(queue), topic_name(group, "group"))

    async def declare(self, queue: str, *, group: str) -> None:
        await asyncio.to_thread(declare, self._cluster, topic_name(queue), topic_name(group, "group"))

    async def check(self, queue: str, *, group: str) -> None:
        await asyncio.to_thread(check, self._cluster, topic_name(queue), topic_name(group, "group"))

    async def close(self) -> None:
        return None

    def __repr__(self) -> str:
        return str(self._cluster)


class KafkaPublisher:
    """See `contracts.Publisher`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sender: Sender | None = None

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        topic_name(queue)
        self._sender = self._sender or Sender(self._cluster)
        return await self._sender.send(queue, list(map(record_of, packets)))

    async def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()


class KafkaConsumer:
    """See `contracts.Consumer`."""

    def __init__(self, cluster: Cluster, queue: str, group: str, prefetch: int) -> None:
        self._cluster = cluster
        self._queue = queue
        self._group = group
        self._prefetch = prefetch
        self._reader: Reader | None = None
        self._dead: Sender | None = None

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        if self._reader is None or not self._reader.alive:
            self._reader = Reader(self._cluster, self._queue, self._group, self._prefetch)
        return await self._reader.receive(limit, wait)

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return self._settle(deliveries, lambda backlog: backlog.ack(deliveries))

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        due = time.monotonic() + delay
        return self._settle(deliveries, lambda backlog: backlog.nack(deliveries, due))

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """They stay here for as long as their partition does, without being asked."""
        return self._settle(deliveries, lambda backlog: [backlog.owns(delivery) for delivery in deliveries])

    def _settle(self, deliveries: Sequence[Delivery], work: Callable[[Backlog], list[bool]]) -> list[bool]:
        return [False] * len(deliveries) if self._reader is None else self._reader.settle(work)

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        if not all(await self.extend([delivery], 0)):
            return False
        self._dead = self._dead or Sender(self._cluster, idempotent=False)
        letter = letter_of(delivery.handle.message, headers)
        (refused,) = await self._dead.send(dead_topic(self._queue, self._group), [letter])
        if refused is not None:
            raise refused
        return all(await self.ack([delivery]))

    async def flush(self) -> None:
        if self._reader is not None:
            await self._reader.flush()

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        dead, self._dead = self._dead, None
        if reader is not None:
            with suppress(BrokerUnavailable):
                await reader.flush()
            await reader.close()
        if dead is not None:
            await dead.close()
