"""Kafka: a queue is a topic, a group a consumer group, an ordering key the key of a record.

A commit never goes past an unsettled message (F53), although messages may be settled in any order: see
`offset_tracker`. After a rebalance the deliveries of revoked partitions are stale, and another consumer gets them.

Kafka removes records by age, and cannot remove a single one. So each queue and group has a compacted topic for its dead
letters: a dead letter has a key, and to remove it is to write a tombstone under that key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from effectonce.contracts import BrokerBackend, BrokerCapabilities, Delivery, Packet
from effectonce.errors import BrokerUnavailable
from effectonce.values.urls import Address

from .dead_letters import KafkaDeadLetters, dead_letter_record
from .endpoint import KafkaCluster, dead_letter_topic, parse_cluster, require_names, require_topic_name
from .group_member import GroupMember
from .offset_tracker import OffsetTracker
from .producer import ConfirmedProducer
from .records import make_record
from .topics import check_topics, declare_topics

MAX_BATCH: Final = 500


class KafkaBackend(BrokerBackend):
    """``kafka://host1:9092,host2:9092``, or ``kafka://user:password@host:9093`` with SASL over TLS.

    Options: ``mechanism`` (``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512``, ``OAUTHBEARER``, ``GSSAPI``), ``token_url``
    and ``scope`` (of OAUTHBEARER: where the user and the password, a client's id and secret, get a token), ``timeout``
    (30 s), ``session_timeout`` (45 s: after so long without a heartbeat a consumer's partitions go to others),
    ``max_body`` (1 MB); for the topics that `declare` creates ``partitions`` and ``replication`` (by default as the
    broker is set), and ``retention`` (7d, or ``unlimited``), how long a message can be delivered; and those for TLS:
    ``tls`` (yes where there is a login), ``ca_file``, ``cert_file``, ``key_file``, ``verify``; there is no
    ``server_name``. Names with a dot are settings of librdkafka: ``client.rack=eu-1``,
    ``sasl.kerberos.keytab=/etc/shop.keytab``.
    """

    def __init__(self, address: Address) -> None:
        self._cluster = parse_cluster(address)
        self.capabilities = BrokerCapabilities(
            name="kafka",
            ordering="key",
            groups=True,
            has_offsets=True,
            delay_limit="a partition is read in the order of its records",
            redelivery_horizon_s=self._cluster.retention,
            max_body=self._cluster.max_body,
            batch=MAX_BATCH,
        )

    def publisher(self) -> KafkaPublisher:
        return KafkaPublisher(self._cluster)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> KafkaConsumer:
        return KafkaConsumer(self._cluster, *require_names(queue, group), prefetch)

    def dead_letters(self, queue: str, *, group: str) -> KafkaDeadLetters:
        return KafkaDeadLetters(self._cluster, *require_names(queue, group))

    async def declare(self, queue: str, *, group: str) -> None:
        await asyncio.to_thread(declare_topics, self._cluster, *require_names(queue, group))

    async def check(self, queue: str, *, group: str) -> None:
        await asyncio.to_thread(check_topics, self._cluster, *require_names(queue, group))

    def __repr__(self) -> str:
        return str(self._cluster)


class KafkaPublisher(ConfirmedProducer):
    """See `contracts.Publisher`."""

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        return await self.send(require_topic_name(queue), list(map(make_record, packets)))


class KafkaConsumer:
    """See `contracts.Consumer`.

    It is a `GroupMember` at a time, which has its own thread; this class stays on the event loop. Deliveries belong to
    the member that they came from: when it is lost, their partitions go to others, and settling them is refused.
    """

    def __init__(self, cluster: KafkaCluster, queue: str, group: str, prefetch: int) -> None:
        self._join_group = partial(GroupMember, cluster, queue, group, prefetch)
        self._member: GroupMember | None = None
        self._dead_letters = ConfirmedProducer(cluster, idempotent=False)
        self._dead_letter_topic = dead_letter_topic(queue, group)

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        if self._member is None or not self._member.alive:
            self._member = self._join_group()
        return await self._member.receive(limit, wait)

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return self._settle(deliveries, OffsetTracker.ack)

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        due = time.monotonic() + delay
        return self._settle(deliveries, lambda tracker, delivery: tracker.nack(delivery, due))

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """See `contracts.Consumer`. There is nothing to extend: deliveries are ours for as long as their partition."""
        return self._settle(deliveries, OffsetTracker.owns)

    def _settle(self, deliveries: Sequence[Delivery], work: Callable[[OffsetTracker, Delivery], bool]) -> list[bool]:
        return [False] * len(deliveries) if self._member is None else self._member.settle(deliveries, work)

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        if not all(await self.extend([delivery], 0)):
            return False
        record = dead_letter_record(delivery.handle.message, headers)
        (error,) = await self._dead_letters.send(self._dead_letter_topic, [record])
        if error is not None:
            raise error
        return all(await self.ack([delivery]))

    async def flush(self) -> None:
        if self._member is not None:
            await self._member.flush()

    async def close(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            with suppress(BrokerUnavailable):
                await member.flush()
            await member.close()
        await self._dead_letters.close()
