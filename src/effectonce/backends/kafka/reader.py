"""The thread behind a Kafka consumer: it reads into a backlog and commits what is settled.

It polls for as long as the consumer is open, whatever handlers do, so the partitions stay ours: there is no ack window.
Where nobody asks for more it pauses the partitions and goes on polling. Nobody else calls the client, and it is never
called under the lock: a call may wait for a callback that waits for the lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from effectonce.contracts import Delivery
from effectonce.errors import BrokerUnavailable, ConfigurationError

from .client import Cluster, reach, translate
from .offset_tracker import Backlog

#: How long one poll lasts: how late the thread hears that it shall end.
TICK: Final = 0.05
#: After how many ticks without room the partitions are paused; not at once, since that drops what was fetched ahead.
FULL: Final = 10
#: Commits are at least this far apart, in seconds, but for `flush`.
COMMIT_EVERY: Final = 0.1


class Bell:
    """Rung in a thread, heard on an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()

    def ring(self) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody listens
            self._loop.call_soon_threadsafe(self._event.set)

    async def heard(self, within: float | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._event.wait()
            self._event.clear()
            return True
        return False


class Reader:
    """One membership in the group: from its first contact to its end, by `close` or by an error. Then make another."""

    def __init__(self, cluster: Cluster, queue: str, group: str, prefetch: int) -> None:
        self._cluster = cluster
        self._queue = queue
        self._group = group
        self._backlog = Backlog(queue, prefetch)
        self._lock = threading.Lock()
        self._poke = threading.Event()
        self._connected = False
        self._stopping = False
        self._trouble: Exception | None = None
        self._full = 0
        self._commits: list[tuple[int, int, str]] = []  # on their way
        self._commit_at = 0.0
        loop = asyncio.get_running_loop()
        self._news, self._answered, self._ended = Bell(loop), Bell(loop), Bell(loop)
        self.alive = True
        threading.Thread(target=self._run, name=f"effectonce-kafka-{queue}", daemon=True).start()

    # -- for the event loop

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            now = time.monotonic()
            with self._lock:
                found = self._backlog.take(limit, now)
                due = self._backlog.next_due()
                trouble, connecting = self._trouble, not self._connected and self.alive
                if not found and not connecting:
                    self._trouble = None
            self._poke.set()
            if found:
                return found
            if trouble is not None and not connecting:
                raise trouble
            if not connecting and now >= deadline:
                return []
            until = deadline if due is None else min(due, deadline)
            await self._news.heard(None if connecting else max(until - now, 0.0))

    def settle(self, work: Callable[[Backlog], list[bool]]) -> list[bool]:
        with self._lock:
            answers = work(self._backlog)
        self._news.ring()  # what was nacked is due, or there is room under the prefetch
        return answers

    async def flush(self) -> None:
        """Return when all that is settled is committed."""
        deadline = time.monotonic() + self._cluster.timeout
        while True:
            with self._lock:
                if not self._connected or not (self._commits or self._backlog.uncommitted()):
                    return
                self._commit_at = 0.0
            self._poke.set()
            if not await self._answered.heard(0.5) and time.monotonic() >= deadline:
                raise BrokerUnavailable(f"{self._cluster} has not confirmed what was acked: it may come again")

    async def close(self) -> None:
        self._stopping = True
        self._poke.set()
        while self.alive:
            await self._ended.heard(None)

    # -- in the thread

    def _run(self) -> None:
        from confluent_kafka import Consumer, KafkaException

        client: Any = None
        try:
            client = self._cluster.client(Consumer, self._heard, self._config())
            reach(client, self._cluster, self._queue, lambda: self._trouble)
            client.subscribe([self._queue], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            with self._lock:
                self._connected, self._trouble = True, None
            self._news.ring()
            while not self._stopping:
                self._tick(client)
        except KafkaException as error:
            self._trouble = translate(error, self._cluster, self._queue)
        except Exception as error:
            self._trouble = error
        finally:
            with self._lock:
                self._connected = False
                self._backlog.revoke_all()
            if client is not None:
                self._stopping = True
                client.close()
            self.alive = False
            self._news.ring()
            self._answered.ring()
            self._ended.ring()

    def _config(self) -> dict[str, Any]:
        session = max(round(self._cluster.session_timeout * 1000), 1)
        return {
            "group.id": self._group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",  # a new group sees all that is there
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session,
            "heartbeat.interval.ms": min(3000, max(session // 3, 1)),
            "max.poll.interval.ms": max(300_000, session),
            "queued.max.messages.kbytes": 16_384,
            "on_commit": self._committed,
        }

    def _tick(self, client: Any) -> None:
        self._commit(client)
        with self._lock:
            room = self._backlog.room()
        if room > 0:
            if self._full >= FULL:
                client.resume(client.assignment())
            self._full = 0
            first = client.poll(TICK)
            messages = [first, *(client.consume(room - 1, 0) if room > 1 else ())] if first is not None else []
        else:
            self._poke.wait(TICK)
            self._poke.clear()
            self._full += 1
            if self._full >= FULL:
                client.pause(client.assignment())  # also what was assigned meanwhile
            first = client.poll(0)  # one too many does no harm
            messages = [first] if first is not None else []
        for message in messages:
            if message.error() is not None:
                self._heard(message.error())
        if messages:
            with self._lock:
                self._backlog.add(message for message in messages if message.error() is None)
            self._news.ring()

    def _heard(self, error: Any) -> None:
        """What the client says of its connections and its group. Most of it, it mends itself."""
        trouble = translate(error, self._cluster, self._queue)
        if isinstance(trouble, ConfigurationError) or error.fatal():
            self._stopping = True
        elif error.name() != "_ALL_BROKERS_DOWN" or isinstance(self._trouble, ConfigurationError):
            return  # or the reason why they are is known
        self._trouble = trouble
        self._news.ring()

    # -- partitions

    def _assigned(self, client: Any, partitions: Sequence[Any]) -> None:
        from confluent_kafka import KafkaException

        found = client.committed(partitions, timeout=self._cluster.timeout)
        for each in found:
            if each.error is not None:  # it would begin anew from the first message that there is
                raise KafkaException(each.error)
        with self._lock:
            for each in found:
                self._backlog.assign(each.partition, each.offset, each.metadata)
        client.incremental_assign(found)

    def _revoked(self, client: Any, partitions: Sequence[Any]) -> None:
        """Still ours, until this returns."""
        with self._lock:
            last = self._backlog.revoke(each.partition for each in partitions)
        if last and not self._stopping:
            with suppress(Exception):  # then it comes again
                client.commit(offsets=self._offsets(last), asynchronous=False)
        self._news.ring()

    def _lost(self, client: Any, partitions: Sequence[Any]) -> None:
        """No longer ours: there is nothing to commit."""
        with self._lock:
            self._backlog.revoke(each.partition for each in partitions)
        self._news.ring()

    # -- commits

    def _commit(self, client: Any) -> None:
        """Send what is settled, if it is time and nothing is on its way."""
        from confluent_kafka import KafkaException

        with self._lock:
            if self._commits or time.monotonic() < self._commit_at:
                return
            self._commits = self._backlog.uncommitted()
            self._commit_at = time.monotonic() + COMMIT_EVERY
        if self._commits:
            try:
                client.commit(offsets=self._offsets(self._commits), asynchronous=True)
            except KafkaException:  # between two memberships: tried again
                self._commits = []

    def _offsets(self, commits: Iterable[tuple[int, int, str]]) -> list[Any]:
        from confluent_kafka import TopicPartition

        return [TopicPartition(self._queue, partition, offset, note) for partition, offset, note in commits]

    def _committed(self, error: Any, partitions: Sequence[Any]) -> None:
        refused = {each.partition for each in partitions if error is not None or each.error is not None}
        with self._lock:
            self._backlog.committed(commit for commit in self._commits if commit[0] not in refused)
            self._commits = []
        self._answered.ring()
