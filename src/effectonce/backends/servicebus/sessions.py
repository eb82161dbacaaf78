"""Consuming from a queue with sessions on Azure Service Bus.

The messages of one ordering key are one session, which one consumer has at a time. A consumer has several sessions,
each with a receiver of the SDK and a task that reads from it. All deliveries of a session are ours while the session is
locked; its lock is renewed for all of them at once. Messages without an ordering key are spread over a few sessions,
since each session costs a connection.

A nacked message stays here, locked. Nothing more of its session is read, until its delay is over and it is delivered
again from here. (If it were abandoned, it would be redelivered behind those that the SDK has prefetched.) If this
process dies, the message is redelivered when the session's lock ends: its delay and the attempts that were counted here
are lost, the message is not. A message without an ordering key must hold up no others: a copy of it is scheduled.

Attempts may be counted too high: the service also counts messages that the SDK had prefetched when a session was
released, and that were never delivered.

**This was never run against the service itself**; see `broker`.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from effectonce.contracts import Delivery

from .client import LockLost, ServiceBusNamespace, close_quietly, lock_lost_errors, translate
from .consumer import MAX_POLL_S, SettlingConsumer
from .messages import ReceivedMessage, read_packet

#: The most sessions that are read at once. As many again may wait for the delay of a nacked message.
MAX_READ_SESSIONS: Final = 32
#: How long the task of a session pauses while the session may not be read.
READ_PAUSE_S: Final = 0.02
#: A session without a message for so long is released.
RELEASE_IDLE_AFTER_S: Final = 0.5
#: How long one call waits for a session with messages.
ACCEPT_TIMEOUT_S: Final = 5.0


class _SessionDelivery(Struct, eq=False):
    """The `Delivery.handle`: an unsettled message, and the session that it belongs to."""

    session: _LockedSession
    message: Any


class _DelayedDelivery(Struct, eq=False):
    """A nacked delivery, until it is delivered again."""

    due: float  # on the monotonic clock
    delivery: Delivery


def _sequence_number(delayed: _DelayedDelivery) -> int:
    number: int = delayed.delivery.handle.message.sequence_number
    return number


class _LockedSession:
    """One session, from when it is locked until the lock is lost or released."""

    def __init__(self, receiver: Any, window: float) -> None:
        self.receiver = receiver
        self.window = window
        # It was locked a moment ago. Two times at which the lock may end: one that the service's clock names, and one
        # window after that moment. The earlier one counts, since the machine's clock may be wrong.
        ends_at = receiver.session.locked_until_utc
        seconds_left = window if ends_at is None else (ends_at - datetime.now(UTC)).total_seconds()
        self.locked_until = time.monotonic() + min(seconds_left, window - MAX_POLL_S)
        self.turn = asyncio.Lock()  # the SDK's receivers do not support several tasks at once
        self.unsettled: set[_SessionDelivery] = set()
        self.delayed: list[_DelayedDelivery] = []  # in the order of the queue
        self.idle_since = time.monotonic()
        self.task: asyncio.Task[None] | None = None

    @property
    def lost(self) -> bool:
        return time.monotonic() >= self.locked_until

    async def renew(self) -> None:
        started_at = time.monotonic()
        await self.receiver.session.renew_lock()
        self.locked_until = started_at + self.window


class ServiceBusSessionsConsumer(SettlingConsumer):
    """See `contracts.Consumer`."""

    def __init__(self, namespace: ServiceBusNamespace, queue: str, prefetch: int, window: float) -> None:
        super().__init__(namespace, queue)
        self._namespace = namespace
        self._prefetch = prefetch
        self._window_s = window
        self._client: Any = None
        self._sessions: set[_LockedSession] = set()
        self._arrived: deque[Delivery] = deque()
        self._requested = 0  # how many messages the sessions' tasks may receive by the calls that are under way
        self._failure: Exception | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._wake_up = asyncio.Event()

    # -- receiving

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            self._wake_up.clear()
            deliveries: list[Delivery] = []
            while self._arrived and len(deliveries) < limit:
                delivery = self._arrived.popleft()
                if self._owns(delivery.handle):
                    deliveries.append(delivery)
            if deliveries:
                return deliveries
            if self._failure is not None:
                error, self._failure = self._failure, None
                raise error
            if self._accepting is None and self._may_accept():
                self._accepting = asyncio.create_task(self._accept_session())
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                return []
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake_up.wait(), seconds_left)

    def _room(self) -> int:
        return self._prefetch - sum(len(session.unsettled) for session in self._sessions)

    def _may_accept(self) -> bool:
        delayed = sum(bool(session.delayed) for session in self._sessions)
        read = len(self._sessions) - delayed
        return self._room() > 0 and read < MAX_READ_SESSIONS and delayed < MAX_READ_SESSIONS

    async def _accept_session(self) -> None:
        """Lock the next session that has messages and no consumer, if there is one, and start to read it."""
        from azure.servicebus import NEXT_AVAILABLE_SESSION
        from azure.servicebus.exceptions import OperationTimeoutError

        started_at = time.monotonic()
        receiver: Any = None
        try:
            if self._client is None:
                self._client = self._namespace.client()
            receiver = self._client.get_queue_receiver(
                self._queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=ACCEPT_TIMEOUT_S
            )
            async with asyncio.timeout(ACCEPT_TIMEOUT_S + self._namespace.timeout):
                await receiver.__aenter__()
            session = _LockedSession(receiver, self._window_s)
            self._sessions.add(session)
            session.task = asyncio.create_task(self._read_session(session))
        except OperationTimeoutError:
            await close_quietly(receiver, self._namespace)
            await asyncio.sleep(started_at + MAX_POLL_S - time.monotonic())
        except asyncio.CancelledError:
            await close_quietly(receiver, self._namespace)
            raise
        except Exception as error:
            await close_quietly(receiver, self._namespace)
            self._failure = translate(error, self._namespace, self._queue)
            await self._drop_client()
        finally:
            self._accepting = None
            self._wake_up.set()

    async def _read_session(self, session: _LockedSession) -> None:
        """Read from ``session`` until its lock is lost, or it has been idle for a while."""
        try:
            while not session.lost:
                now = time.monotonic()
                if session.locked_until - now < session.window / 2 and session.delayed and not session.unsettled:
                    await self._use(session, lambda receiver: session.renew())
                while session.delayed and session.delayed[0].due <= now:  # the first one holds up those behind it
                    nacked = session.delayed.pop(0).delivery
                    self._deliver(session, nacked.handle.message, ReceivedMessage(nacked.packet, nacked.attempt + 1))
                room = self._room() - self._requested
                if session.delayed or room <= 0:
                    await asyncio.sleep(READ_PAUSE_S)
                    continue
                # Half of the room: other sessions receive at the same time.
                if not await self._receive_messages(session, (room + 1) // 2):
                    is_idle = time.monotonic() - session.idle_since >= RELEASE_IDLE_AFTER_S
                    if is_idle and not session.unsettled and not session.delayed:
                        return
                    await asyncio.sleep(2 * READ_PAUSE_S)
        except LockLost:
            pass
        except Exception as error:
            self._failure = error
        finally:
            self._sessions.discard(session)
            session.locked_until = 0.0
            self._wake_up.set()
            await close_quietly(session.receiver, self._namespace)

    async def _receive_messages(self, session: _LockedSession, room: int) -> bool:
        self._requested += room
        try:
            messages = await self._use(
                session, lambda receiver: receiver.receive_messages(room, max_wait_time=MAX_POLL_S)
            )
        finally:
            self._requested -= room
        for message in messages:
            self._deliver(session, message, read_packet(message))
        return bool(messages)

    def _deliver(self, session: _LockedSession, message: Any, received: ReceivedMessage) -> None:
        handle = _SessionDelivery(session, message)
        session.unsettled.add(handle)
        session.idle_since = time.monotonic()
        delivery = Delivery(packet=received.packet, queue=self._queue, attempt=received.attempt, handle=handle)
        self._arrived.append(delivery)
        self._wake_up.set()

    async def _use(self, session: _LockedSession, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Await ``work`` with the session's receiver, and return its result.

        After an error the session counts as lost, unless only the lock of a message has ended.
        """
        async with session.turn:
            try:
                async with asyncio.timeout(self._namespace.timeout):
                    return await work(session.receiver)
            except lock_lost_errors() as error:
                raise translate(error, self._namespace, self._queue) from error
            except Exception as error:
                session.locked_until = 0.0
                raise translate(error, self._namespace, self._queue) from error
            except BaseException:
                session.locked_until = 0.0
                raise

    # -- settling

    def _owns(self, handle: _SessionDelivery) -> bool:
        return handle in handle.session.unsettled and not handle.session.lost

    async def _settle(self, delivery: Delivery, operation: str, **options: Any) -> bool:
        handle: _SessionDelivery = delivery.handle
        settled = self._owns(handle)
        if settled:
            try:
                await self._use(
                    handle.session, lambda receiver: getattr(receiver, operation)(handle.message, **options)
                )
            except LockLost:
                settled = False
        self._release(handle)
        return settled

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return [self._owns(delivery.handle) and await self._nack_owned(delivery, delay) for delivery in deliveries]

    async def _nack_owned(self, delivery: Delivery, delay: float) -> bool:
        if delay > 0 and delivery.packet.ordering_key is None:  # it must not hold up its session
            return await self._postpone(delivery, delay, sessions=True)
        delayed = _DelayedDelivery(time.monotonic() + delay, delivery)
        insort(delivery.handle.session.delayed, delayed, key=_sequence_number)
        self._release(delivery.handle)
        return True

    def _release(self, handle: _SessionDelivery) -> None:
        handle.session.unsettled.discard(handle)
        self._wake_up.set()

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """See `contracts.Consumer`. Renews the locks of whole sessions by the lock duration, whatever ``seconds``
        is."""
        for session in {delivery.handle.session for delivery in deliveries if self._owns(delivery.handle)}:
            with suppress(LockLost):
                await self._use(session, lambda receiver: session.renew())  # noqa: B023
        return [self._owns(delivery.handle) for delivery in deliveries]

    # -- closing

    async def close(self) -> None:
        """Abandon unsettled messages. Where that fails, they are redelivered when the locks of their sessions end."""
        tasks = [task for task in (self._accepting, *(session.task for session in self._sessions)) if task is not None]
        for session in list(self._sessions):
            with suppress(Exception):
                for handle in [*session.unsettled, *(delayed.delivery.handle for delayed in session.delayed)]:
                    await self._use(session, lambda receiver: receiver.abandon_message(handle.message))  # noqa: B023
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._arrived.clear()
        self._failure = None
        await self._copies.close()
        await self._drop_client()

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        await close_quietly(client, self._namespace)
