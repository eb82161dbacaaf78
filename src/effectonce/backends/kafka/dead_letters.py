"""The dead letters of a queue and a group on Kafka: a compacted topic with one partition.

A dead letter's key is the partition and the offset that it had in the queue, so a message that is dead-lettered twice
is there once. Removing it writes a tombstone; then all that lies before the first remaining dead letter is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from effectonce.contracts import DeadLetter
from effectonce.errors import BrokerUnavailable

from .endpoint import KafkaCluster, dead_letter_topic
from .errors import translate
from .producer import ConfirmedProducer
from .records import ORDERING_KEY, KafkaRecord, read_packet
from .topics import wait_for_topic

T = TypeVar("T")


def dead_letter_record(message: Any, headers: Mapping[str, str]) -> KafkaRecord:
    """Make the record of a dead letter: the exact bytes of ``message``, with ``headers`` added."""
    added = {name: text.encode() for name, text in headers.items()}
    kept_headers = [(name, value) for name, value in message.headers() or () if value is not None and name not in added]
    if message.key() is not None:
        added[ORDERING_KEY] = message.key()
    key = f"{message.partition()}-{message.offset()}".encode()
    return KafkaRecord(key, message.value() or b"", [*kept_headers, *added.items()])


class KafkaDeadLetters:
    """See `contracts.DeadLetters`. The whole topic is read once, for an index; later calls read only what is new."""

    def __init__(self, cluster: KafkaCluster, queue: str, group: str) -> None:
        self._cluster = cluster
        self._queue = queue
        self._group = group
        self._topic = dead_letter_topic(queue, group)
        self._thread = ThreadPoolExecutor(1, "effectonce-kafka-dead")
        self._producer = ConfirmedProducer(cluster, idempotent=False)
        self._client: Any = None
        self._failure: Exception | None = None
        self._offsets: dict[str, int] = {}  # the index: by id, in the order of the topic
        self._next_offset = 0  # up to which the topic was read

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        return await self._run(lambda: self._browse(limit, int(cursor) if cursor else -1))

    async def remove(self, ids: Sequence[str]) -> int:
        offsets = await self._run(self._update_index)
        removed = [id for id in dict.fromkeys(ids) if id in offsets]
        outcomes = await self._producer.send(self._topic, [KafkaRecord(id.encode(), None, []) for id in removed])
        for error in filter(None, outcomes):
            raise error
        if removed:
            await self._run(self._truncate)
        return len(removed)

    async def count(self) -> int:
        return len(await self._run(self._update_index))

    async def close(self) -> None:
        await self._producer.close()
        if self._client is not None:
            await self._run(self._drop)
        self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run_translated, work)

    # -- called on the thread

    def _run_translated(self, work: Callable[[], T]) -> T:
        from confluent_kafka import KafkaException

        try:
            return work()
        except KafkaException as error:
            self._drop()
            raise translate(error, self._cluster, self._topic) from error
        except BrokerUnavailable:
            self._drop()
            raise

    def _browse(self, limit: int, after: int) -> tuple[list[DeadLetter], str | None]:
        offsets = [offset for offset in self._update_index().values() if offset > after]
        page = offsets[:limit]
        if not page:
            return [], None
        wanted = set(page)
        dead_letters = [
            DeadLetter(
                id=message.key().decode(),
                packet=read_packet(None, message.value(), message.headers()),
                queue=self._queue,
            )
            for message in self._read(page[0], page[-1] + 1)
            if message.offset() in wanted
        ]
        return dead_letters, str(page[-1]) if len(offsets) > len(page) else None

    def _update_index(self) -> dict[str, int]:
        """Read the new records of the topic, and return the offsets of all dead letters by id."""
        for message in self._read(self._next_offset, None):
            id = (message.key() or b"").decode("utf-8", "backslashreplace")
            self._offsets.pop(id, None)
            if message.value() is not None:
                self._offsets[id] = message.offset()
            self._next_offset = message.offset() + 1
        return self._offsets

    def _read(self, start: int, end: int | None) -> Iterator[Any]:
        """Read the records from the offset ``start`` up to the one before ``end``; None: to the end of the topic."""
        from confluent_kafka import KafkaError, TopicPartition

        client = self._client = self._client or self._open_client()
        client.assign([TopicPartition(self._topic, 0, start)])
        while True:
            batch = client.consume(500, 0.0) or client.consume(1, self._cluster.timeout)
            if not batch:
                raise self._failure or BrokerUnavailable(f"{self._cluster} does not answer")
            for message in batch:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return
                if error is not None:
                    raise translate(error, self._cluster, self._topic)
                if end is not None and message.offset() >= end:
                    return
                yield message
                if end is not None and message.offset() == end - 1:
                    return

    def _open_client(self) -> Any:
        from confluent_kafka import Consumer

        config = {
            "group.id": f"{self._group}.dead",  # the client requires one; it joins no group
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the client reports the end of the topic after that long
            "fetch.error.backoff.ms": 10,
        }
        client = self._cluster.make_client(Consumer, self._handle_error, config)
        wait_for_topic(client, self._cluster, self._topic, lambda: self._failure)
        return client

    def _handle_error(self, error: Any) -> None:
        failure = translate(error, self._cluster, self._topic)
        if not isinstance(failure, BrokerUnavailable) or (error.name() == "_ALL_BROKERS_DOWN" and not self._failure):
            self._failure = failure

    def _truncate(self) -> None:
        """Delete all that lies before the first remaining dead letter: removed ones and their tombstones."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient

        first = next(iter(self._update_index().values()), self._next_offset)
        admin = self._cluster.make_client(AdminClient, self._handle_error, {})
        with suppress(KafkaException):  # this only saves space
            for future in admin.delete_records([TopicPartition(self._topic, 0, first)]).values():
                future.result()

    def _drop(self) -> None:
        client, self._client, self._failure = self._client, None, None
        self._offsets, self._next_offset = {}, 0
        if client is not None:
            client.close()
