"""A Kafka producer that waits for the cluster's confirmation of each record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from effectonce.backends.common.packets import raise_if_all_unavailable
from effectonce.errors import BrokerUnavailable

from .endpoint import KafkaCluster
from .errors import is_refusal, translate
from .records import KafkaRecord
from .topics import TOPIC_PROPAGATION_S

_CONFIRM_GRACE_S: Final = 1.0  # past the timeout of a record, for its report to reach us
_FLUSH_POLL_S: Final = 0.1
_DROP_TIMEOUT_S: Final = 1.0  # to report the records that were purged
_HEADERS_ROOM_BYTES: Final = 65_536  # beside the longest body: for the key and the headers


def _new_thread() -> ThreadPoolExecutor:
    """An executor of one thread, which starts when it is first used."""
    return ThreadPoolExecutor(1, "effectonce-kafka-send")


class ConfirmedProducer:
    """A producer that waits until all in-sync replicas have a record. Several tasks may send; they take turns.

    The client belongs to the thread: `_send` and `_drop` run there, and so do the callbacks that the client makes
    inside of them. Nothing else may touch `_producer` or `_refusal`.

    ``idempotent``: when the client itself sends a record again, it is not stored twice, nor out of order. That takes
    half a second to start; records with a key of their own in a compacted topic do not need it.
    """

    def __init__(self, cluster: KafkaCluster, *, idempotent: bool = True) -> None:
        self._cluster = cluster
        self._idempotent = idempotent
        self._thread = _new_thread()
        self._producer: Any = None
        self._refusal: Exception | None = None

    async def send(self, topic: str, records: Sequence[KafkaRecord]) -> list[Exception | None]:
        """Send all records, and return the outcome of each by its delivery report (F44: a batch may fail in part; F45:
        nothing counts as sent without a confirm). Raises where none is known to have arrived."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._send, topic, records)

    async def close(self) -> None:
        """Drop what is not sent, and end the thread. A closed producer opens again when it is next used."""
        thread, self._thread = self._thread, _new_thread()
        await asyncio.get_running_loop().run_in_executor(thread, self._drop)
        thread.shutdown(wait=False)

    def _open(self) -> Any:
        from confluent_kafka import Producer

        self._refusal = None
        config = {
            "enable.idempotence": self._idempotent,
            "acks": "all",
            "message.timeout.ms": max(round(self._cluster.timeout * 1000), 1),
            "topic.metadata.propagation.max.ms": round(min(TOPIC_PROPAGATION_S, self._cluster.timeout) * 1000),
            "message.max.bytes": self._cluster.max_body + _HEADERS_ROOM_BYTES,
            # The partitioner of Java's clients, so that all producers choose the same partition for a key.
            "partitioner": "murmur2_random",
        }
        return self._cluster.make_client(Producer, self._handle_error, config)

    def _handle_error(self, error: Any) -> None:
        if is_refusal(error, self._cluster) or error.fatal():
            self._refusal = translate(error, self._cluster)

    def _send(self, topic: str, records: Sequence[KafkaRecord]) -> list[Exception | None]:
        from confluent_kafka import KafkaException

        if not records:
            return []
        unknown = BrokerUnavailable(f"{self._cluster} did not confirm the message in time; send it again, unchanged")
        outcomes: list[Exception | None] = [unknown] * len(records)

        def report(index: int, error: Any, message: Any) -> None:
            outcomes[index] = None if error is None else translate(error, self._cluster, topic)

        producer = self._producer = self._producer or self._open()
        for index, record in enumerate(records):
            try:
                producer.produce(
                    topic,
                    record.value,
                    record.key,
                    on_delivery=partial(report, index),
                    headers=record.headers,
                    timestamp=record.timestamp,
                )
            except BufferError:  # the client's queue is full: it counts as unconfirmed
                continue
            except KafkaException as error:  # refused before it was sent; those behind it may still go
                outcomes[index] = translate(error, self._cluster, topic)
        deadline = time.monotonic() + self._cluster.timeout + _CONFIRM_GRACE_S
        while producer.flush(_FLUSH_POLL_S) and self._refusal is None and time.monotonic() < deadline:
            pass
        if self._refusal is not None or any(isinstance(outcome, BrokerUnavailable) for outcome in outcomes):
            self._drop()  # records that it still holds must not arrive later, beside the caller's resend
            if self._refusal is not None and None not in outcomes:
                raise self._refusal
            raise_if_all_unavailable(outcomes)
        return outcomes

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(_DROP_TIMEOUT_S)
