"""A member of a Kafka consumer group: a thread that reads into an `OffsetTracker` and commits what is settled.

The thread polls for as long as the consumer is open, even while all handlers are busy, so the partitions stay ours:
there is no ack window. While there is no room for more messages it pauses the partitions, and continues to poll.

Two rules keep it free of deadlocks. Only this thread calls the client. It never holds the lock while it calls: a call
may run a callback of ours, and the callbacks take the lock.
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

from .endpoint import KafkaCluster
from .errors import translate
from .offset_tracker import Commit, OffsetTracker
from .topics import wait_for_topic

#: How long one poll lasts. `close` waits for the poll under way.
POLL_S: Final = 0.05
#: After so many polls without room the partitions are paused. Not at once: pausing drops what the client prefetched.
POLLS_BEFORE_PAUSE: Final = 10
#: Commits are at least this far apart, except for `flush`.
COMMIT_INTERVAL_S: Final = 0.1


class ThreadEvent:
    """An event that is set on a thread and awaited on an event loop. A wait that sees it clears it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()

    def set(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and has no waiter
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, for ``timeout`` seconds at most. Returns whether it was."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
            self._event.clear()
            return True
        return False


class GroupMember:
    """One membership in the group. Once `close` or an error has ended it (``alive`` is False), make another."""

    def __init__(self, cluster: KafkaCluster, queue: str, group: str, prefetch: int) -> None:
        self._cluster = cluster
        self._queue = queue
        self._group = group
        self._tracker = OffsetTracker(queue, prefetch)
        self._lock = threading.Lock()
        self._wake_thread = threading.Event()
        # Both sides use these. The tracker, the commits and `_connected` are touched under the lock only; the others
        # are single assignments, after which the one side wakes the other.
        self._connected = False
        self._pending_commits: list[Commit] = []  # sent, and not yet confirmed
        self._next_commit_at = 0.0
        self._stopping = False
        self._failure: Exception | None = None
        self._polls_without_room = 0  # the thread's own
        loop = asyncio.get_running_loop()
        self._wake_receive, self._wake_flush = ThreadEvent(loop), ThreadEvent(loop)
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
            self._wake_thread.set()
            if deliveries:
                return deliveries
            if failure is not None and not connecting:
                raise failure
            if not connecting and now >= deadline:
                return []
            until = deadline if due is None else min(due, deadline)
            await self._wake_receive.wait(None if connecting else max(until - now, 0.0))

    def settle(self, deliveries: Sequence[Delivery], work: Callable[[OffsetTracker, Delivery], bool]) -> list[bool]:
        """Call ``work`` with the tracker and each delivery, and return the results."""
        with self._lock:
            answers = [work(self._tracker, delivery) for delivery in deliveries]
        self._wake_receive.set()  # a nacked message is due, or the prefetch has room
        return answers

    async def flush(self) -> None:
        """Wait until all that is settled is committed."""
        deadline = time.monotonic() + self._cluster.timeout
        while True:
            with self._lock:
                if not self._connected or not (self._pending_commits or self._tracker.due_commits()):
                    return
                self._next_commit_at = 0.0
            self._wake_thread.set()
            if not await self._wake_flush.wait(0.5) and time.monotonic() >= deadline:
                raise BrokerUnavailable(f"{self._cluster} has not confirmed the acks; messages may be redelivered")

    async def close(self) -> None:
        self._stopping = True
        self._wake_thread.set()
        await asyncio.to_thread(self._thread.join)

    # -- called on the thread

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
            self._wake_receive.set()
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
                client.close()  # its callbacks commit nothing more: the tracker has no partitions
            self.alive = False
            self._wake_receive.set()
            self._wake_flush.set()

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
            self._wake_thread.wait(POLL_S)
            self._wake_thread.clear()
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
            self._wake_receive.set()

    def _handle_error(self, error: Any) -> None:
        """Handle an error of the client's connections or of the group. The client recovers from most of them itself."""
        failure = translate(error, self._cluster, self._queue)
        if isinstance(failure, ConfigurationError) or error.fatal():
            self._stopping = True
        elif error.name() != "_ALL_BROKERS_DOWN" or isinstance(self._failure, ConfigurationError):
            return  # the client recovers, or the cause is known already
        self._failure = failure
        self._wake_receive.set()

    # -- partitions

    def _handle_assignment(self, client: Any, partitions: Sequence[Any]) -> None:
        """Read on from where the group has committed. An error ends this membership. It is not raised: the client's C
        code would hand it on as a bare `KafkaError`, which no ``except`` clause for exceptions catches."""
        from confluent_kafka import KafkaException

        try:
            assigned = client.committed(partitions, timeout=self._cluster.timeout)
            error = next((partition.error for partition in assigned if partition.error is not None), None)
        except KafkaException as raised:
            assigned, error = [], raised
        if error is not None:  # without the committed offset, reading would start at the oldest message
            self._failure, self._stopping = translate(error, self._cluster, self._queue), True
            client.incremental_assign([])  # else the client assigns them by itself
            return
        with self._lock:
            for partition in assigned:
                self._tracker.assign(partition.partition, partition.offset, partition.metadata)
        client.incremental_assign(assigned)

    def _handle_revocation(self, client: Any, partitions: Sequence[Any]) -> None:
        """Commit a last time. The partitions are ours until this returns."""
        with self._lock:
            last_commits = self._tracker.revoke(revoked.partition for revoked in partitions)
        if last_commits and not self._stopping:
            with suppress(Exception):  # then the messages are redelivered
                client.commit(offsets=self._make_offsets(last_commits), asynchronous=False)
        self._wake_receive.set()

    def _handle_loss(self, client: Any, partitions: Sequence[Any]) -> None:
        """Forget partitions that another consumer has already: nothing may be committed."""
        with self._lock:
            self._tracker.revoke(lost.partition for lost in partitions)
        self._wake_receive.set()

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
            except KafkaException:  # the group is rebalancing; the next poll tries again
                self._pending_commits = []

    def _make_offsets(self, commits: Iterable[Commit]) -> list[Any]:
        from confluent_kafka import TopicPartition

        return [TopicPartition(self._queue, commit.partition, commit.offset, commit.note) for commit in commits]

    def _handle_commit(self, error: Any, partitions: Sequence[Any]) -> None:
        refused = {committed.partition for committed in partitions if error is not None or committed.error is not None}
        with self._lock:
            self._tracker.set_committed(commit for commit in self._pending_commits if commit.partition not in refused)
            self._pending_commits = []
        self._wake_flush.set()
