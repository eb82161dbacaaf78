"""The thread behind a Kafka consumer: it reads into an `OffsetTracker` and commits what is settled.

It polls for as long as the consumer is open, whatever handlers do, so the partitions stay ours: there is no ack window.
While there is no room for more messages it pauses the partitions and goes on polling. Only this thread calls the
client, and never while it holds the lock: a call may wait for a callback that waits for the lock.
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

from .cluster import KafkaCluster, translate, wait_for_topic
from .offset_tracker import Commit, OffsetTracker

#: How long one poll lasts: `close` waits for it.
POLL_S: Final = 0.05
#: After so many polls without room the partitions are paused; not at once, since that drops what was prefetched.
POLLS_BEFORE_PAUSE: Final = 10
#: Commits are at least this far apart, except for `flush`.
COMMIT_INTERVAL_S: Final = 0.1


class ThreadEvent:
    """An event that is set in a thread and awaited on an event loop. Waiting clears it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()

    def set(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and has no waiter
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout: float | None) -> bool:
        """Whether it was set within ``timeout`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
            self._event.clear()
            return True
        return False


class GroupMember:
    """One membership in the group, until `close` or an error ends it. Then make another."""

    def __init__(self, cluster: KafkaCluster, queue: str, group: str, prefetch: int) -> None:
        self._cluster = cluster
        self._queue = queue
        self._group = group
        self._tracker = OffsetTracker(queue, prefetch)
        self._lock = threading.Lock()
        self._work_changed = threading.Event()
        self._connected = False
        self._stopping = False
        self._failure: Exception | None = None
        self._polls_without_room = 0
        self._pending_commits: list[Commit] = []  # sent, and not yet confirmed
        self._next_commit_at = 0.0
        loop = asyncio.get_running_loop()
        self._changed, self._committed = ThreadEvent(loop), ThreadEvent(loop)
        self.alive = True
        self._thread = threading.Thread(target=self._run, name=f"effectonce-kafka-{queue}", daemon=True)
        self._thread.start()

    # -- called on the event loop

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            now = time.monotonic()
            with self._lock:
                deliveries = self._tracker.take(limit, now)
                due = self._tracker.next_due()
                failure, connecting = self._failure, not self._connected and self.alive
                if not deliveries and not connecting:
                    self._failure = None
            self._work_changed.set()
            if deliveries:
                return deliveries
            if failure is not None and not connecting:
                raise failure
            if not connecting and now >= deadline:
                return []
            until = deadline if due is None else min(due, deadline)
            await self._changed.wait(None if connecting else max(until - now, 0.0))

    def settle(self, deliveries: Sequence[Delivery], work: Callable[[OffsetTracker, Delivery], bool]) -> list[bool]:
        """Call ``work`` with the tracker and each delivery, and return the results."""
        with self._lock:
            answers = [work(self._tracker, delivery) for delivery in deliveries]
        self._changed.set()  # a nacked message is due, or the prefetch has room
        return answers

    async def flush(self) -> None:
        """Return when all that is settled is committed."""
        deadline = time.monotonic() + self._cluster.timeout
        while True:
            with self._lock:
                if not self._connected or not (self._pending_commits or self._tracker.due_commits()):
                    return
                self._next_commit_at = 0.0
            self._work_changed.set()
            if not await self._committed.wait(0.5) and time.monotonic() >= deadline:
                raise BrokerUnavailable(f"{self._cluster} has not confirmed the acks; these messages may come again")

    async def close(self) -> None:
        self._stopping = True
        self._work_changed.set()
        await asyncio.to_thread(self._thread.join)

    # -- run in the thread

    def _run(self) -> None:
        from confluent_kafka import Consumer, KafkaException

        client: Any = None
        try:
            client = self._cluster.make_client(Consumer, self._handle_error, self._config())
            wait_for_topic(client, self._cluster, self._queue, lambda: self._failure)
            client.subscribe(
                [self._queue],
                on_assign=self._handle_assignment,
                on_revoke=self._handle_revocation,
                on_lost=self._handle_loss,
            )
            with self._lock:
                self._connected, self._failure = True, None
            self._changed.set()
            while not self._stopping:
                self._poll(client)
        except KafkaException as error:
            self._failure = translate(error, self._cluster, self._queue)
        except Exception as error:
            self._failure = error
        finally:
            with self._lock:
                self._connected = False
                self._tracker.revoke_all()
            if client is not None:
                self._stopping = True
                client.close()
            self.alive = False
            self._changed.set()
            self._committed.set()

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
            "on_commit": self._handle_commit,
        }

    def _poll(self, client: Any) -> None:
        self._commit(client)
        with self._lock:
            room = self._tracker.room()
        if room > 0:
            if self._polls_without_room >= POLLS_BEFORE_PAUSE:
                client.resume(client.assignment())
            self._polls_without_room = 0
            first = client.poll(POLL_S)
            messages = [first, *(client.consume(room - 1, 0) if room > 1 else ())] if first is not None else []
        else:
            self._work_changed.wait(POLL_S)
            self._work_changed.clear()
            self._polls_without_room += 1
            if self._polls_without_room >= POLLS_BEFORE_PAUSE:
                client.pause(client.assignment())  # including those assigned meanwhile
            first = client.poll(0)  # one message too many does no harm
            messages = [first] if first is not None else []
        for message in messages:
            if message.error() is not None:
                self._handle_error(message.error())
        if messages:
            with self._lock:
                self._tracker.add(message for message in messages if message.error() is None)
            self._changed.set()

    def _handle_error(self, error: Any) -> None:
        """Keep an error of the client's connections or group. Most of them the client repairs itself."""
        failure = translate(error, self._cluster, self._queue)
        if isinstance(failure, ConfigurationError) or error.fatal():
            self._stopping = True
        elif error.name() != "_ALL_BROKERS_DOWN" or isinstance(self._failure, ConfigurationError):
            return  # the client repairs it, or the cause is known already
        self._failure = failure
        self._changed.set()

    # -- partitions

    def _handle_assignment(self, client: Any, partitions: Sequence[Any]) -> None:
        from confluent_kafka import KafkaException

        assigned = client.committed(partitions, timeout=self._cluster.timeout)
        for partition in assigned:
            if partition.error is not None:  # without its offset it would start again from the oldest message
                raise KafkaException(partition.error)
        with self._lock:
            for partition in assigned:
                self._tracker.assign(partition.partition, partition.offset, partition.metadata)
        client.incremental_assign(assigned)

    def _handle_revocation(self, client: Any, partitions: Sequence[Any]) -> None:
        """Commit for the last time: the partitions are ours until this returns."""
        with self._lock:
            last_commits = self._tracker.revoke(revoked.partition for revoked in partitions)
        if last_commits and not self._stopping:
            with suppress(Exception):  # then the messages come again
                client.commit(offsets=self._make_offsets(last_commits), asynchronous=False)
        self._changed.set()

    def _handle_loss(self, client: Any, partitions: Sequence[Any]) -> None:
        """Forget partitions that are another's already: nothing may be committed."""
        with self._lock:
            self._tracker.revoke(lost.partition for lost in partitions)
        self._changed.set()

    # -- commits

    def _commit(self, client: Any) -> None:
        """Send the commits that are due, if it is time and none is unconfirmed."""
        from confluent_kafka import KafkaException

        with self._lock:
            if self._pending_commits or time.monotonic() < self._next_commit_at:
                return
            self._pending_commits = self._tracker.due_commits()
            self._next_commit_at = time.monotonic() + COMMIT_INTERVAL_S
        if self._pending_commits:
            try:
                client.commit(offsets=self._make_offsets(self._pending_commits), asynchronous=True)
            except KafkaException:  # the group is rebalancing: tried again
                self._pending_commits = []

    def _make_offsets(self, commits: Iterable[Commit]) -> list[Any]:
        from confluent_kafka import TopicPartition

        return [TopicPartition(self._queue, partition, offset, note) for partition, offset, note in commits]

    def _handle_commit(self, error: Any, partitions: Sequence[Any]) -> None:
        refused = {committed.partition for committed in partitions if error is not None or committed.error is not None}
        with self._lock:
            self._tracker.set_committed(commit for commit in self._pending_commits if commit[0] not in refused)
            self._pending_commits = []
        self._committed.set()
