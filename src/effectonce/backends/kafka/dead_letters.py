"""The dead letters of a queue and a group on Kafka: a compacted topic with one partition.

A dead letter's key is its place in the queue, so what is given up twice is there once. Removing it writes a tombstone;
what is before the first that is left is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from effectonce.contracts import DeadLetter
from effectonce.errors import BrokerUnavailable

from .client import ORDERING_KEY, Cluster, Record, Sender, dead_topic, packet_of, reach, translate

T = TypeVar("T")


def letter_of(message: Any, headers: Mapping[str, str]) -> Record:
    """The record of a dead letter: the bytes of ``message``, whatever they are, with ``headers`` added."""
    added = {name: text.encode() for name, text in headers.items()}
    kept = [(name, value) for name, value in message.headers() or () if value is not None and name not in added]
    if message.key() is not None:
        added[ORDERING_KEY] = message.key()
    key = f"{message.partition()}-{message.offset()}".encode()
    return Record(key, message.value() or b"", [*kept, *added.items()])


class KafkaDeadLetters:
    """See `contracts.DeadLetters`. The index of what is there is read once, and then what has come since."""

    def __init__(self, cluster: Cluster, queue: str, group: str) -> None:
        self._cluster = cluster
        self._queue = queue
        self._group = group
        self._topic = dead_topic(queue, group)
        self._thread = ThreadPoolExecutor(1, "effectonce-kafka-dead")
        self._sender: Sender | None = None
        self._client: Any = None
        self._trouble: Exception | None = None
        self._there: dict[str, int] = {}  # id: offset, in the order of the topic
        self._next = 0

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        return await self._do(lambda: self._browse(limit, int(cursor) if cursor else -1))

    async def remove(self, ids: Sequence[str]) -> int:
        there = await self._do(self._index)
        going = [id for id in dict.fromkeys(ids) if id in there]
        self._sender = self._sender or Sender(self._cluster, idempotent=False)
        outcomes = await self._sender.send(self._topic, [Record(id.encode(), None, []) for id in going])
        for refused in filter(None, outcomes):
            raise refused
        if going:
            await self._do(self._cut_off)
        return len(going)

    async def count(self) -> int:
        return len(await self._do(self._index))

    async def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()
        if self._client is not None:
            await self._do(self._drop)
        self._thread.shutdown(wait=False)

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._translated, work)

    # -- in the thread

    def _translated(self, work: Callable[[], T]) -> T:
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
        behind = [offset for offset in self._index().values() if offset > after]
        page = set(behind[:limit])
        letters: list[DeadLetter] = []
        for message in self._read(behind[0], behind[: len(page)][-1] + 1) if page else ():
            if message.offset() in page:
                packet = packet_of(None, message.value(), message.headers())
                letters.append(DeadLetter(id=message.key().decode(), packet=packet, queue=self._queue))
        return letters, str(max(page)) if len(behind) > len(page) else None

    def _index(self) -> dict[str, int]:
        for message in self._read(self._next, None):
            id = (message.key() or b"").decode("utf-8", "backslashreplace")
            self._there.pop(id, None)
            if message.value() is not None:
                self._there[id] = message.offset()
            self._next = message.offset() + 1
        return self._there

    def _read(self, start: int, end: int | None) -> Iterator[Any]:
        """Every record from the offset ``start``: to before ``end``, or to the end of the topic."""
        from confluent_kafka import KafkaError, TopicPartition

        client = self._client = self._client or self._open()
        client.assign([TopicPartition(self._topic, 0, start)])
        while True:
            batch = client.consume(500, 0.0) or client.consume(1, self._cluster.timeout)
            if not batch:
                raise self._trouble or BrokerUnavailable(f"{self._cluster} does not answer")
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

    def _open(self) -> Any:
        from confluent_kafka import Consumer

        config = {
            "group.id": f"{self._group}.dead",  # asked for by the client, joined by nobody
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end of the topic is told after that long
            "fetch.error.backoff.ms": 10,
        }
        client = self._cluster.client(Consumer, self._heard, config)
        reach(client, self._cluster, self._topic, lambda: self._trouble)
        return client

    def _heard(self, error: Any) -> None:
        trouble = translate(error, self._cluster, self._topic)
        if not isinstance(trouble, BrokerUnavailable) or (error.name() == "_ALL_BROKERS_DOWN" and not self._trouble):
            self._trouble = trouble

    def _cut_off(self) -> None:
        """Drop what lies before the first dead letter that is left: removed ones and their tombstones."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient

        there = self._index()
        first = next(iter(there.values()), self._next)
        admin = self._cluster.client(AdminClient, self._heard, {})
        with suppress(KafkaException):  # it is only for the space
            for future in admin.delete_records([TopicPartition(self._topic, 0, first)]).values():
                future.result()

    def _drop(self) -> None:
        client, self._client, self._trouble = self._client, None, None
        self._there, self._next = {}, 0
        if client is not None:
            client.close()
