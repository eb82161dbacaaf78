"""Sessions of Azure Service Bus: what has one ordering key is one session, which one consumer has at a time.

A consumer has several sessions, each with a receiver of the SDK's and a task that reads from it. All deliveries of a
session are ours for as long as its lock, which is renewed as a whole.

Messages without an ordering key are spread over a few sessions, since each session costs a connection.

A message that is nacked stays here, locked: nothing more of its session is read, and it is delivered again, and
counted, from here when its time has come. (Given back at once, it would come behind those that the SDK has read ahead.)
Should this process die, it comes again when the session's lock ends: a delay, and what was counted here, do not outlive
their consumer, the message does. One without an ordering key, which nothing has to wait for, is scheduled as a copy.

Attempts may be counted too high: what the SDK has read ahead when a session is left to others was delivered to nobody.

**Never run against the service itself**; see `servicebus`.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from effectonce.contracts import Delivery, Packet
from effectonce.errors import BrokerUnavailable

from .client import Link, Namespace, translate
from .messages import GIVEN_UP, description_of, message_of, packet_of

#: The most sessions that are read from at once; those that wait for a delay come on top of them, up to as many.
AT_ONCE: Final = 32
#: How long one receive keeps a receiver to itself, in seconds: settlements wait for that long.
SLICE: Final = 0.2
#: How long a session that may not be read waits before it looks again, in seconds.
TICK: Final = 0.02
#: After how many seconds without a message a session is left to others.
IDLE: Final = 0.5
#: How long to wait for a session that has messages, in seconds.
PATIENCE: Final = 5.0


class _Held(Struct, eq=False):
    """A delivery that is not settled."""

    session: _Session
    message: Any


class _Delayed(Struct, eq=False):
    due: float
    delivery: Delivery


def _place(delayed: _Delayed) -> int:
    place: int = delayed.delivery.handle.message.sequence_number
    return place


class _Session:
    """One session, from its lock to the end of that."""

    def __init__(self, receiver: Any, window: float) -> None:
        self.receiver = receiver
        self.window = window
        # It was locked a moment ago: by the service's clock as ours has it, or by ours alone, whichever ends first.
        ends = receiver.session.locked_until_utc
        left = window if ends is None else (ends - datetime.now(UTC)).total_seconds()
        self.until = time.monotonic() + min(left, window - SLICE)
        self.turn = asyncio.Lock()  # the SDK's receivers are not made for several tasks at once
        self.held: set[_Held] = set()
        self.delayed: list[_Delayed] = []  # in the order of the session
        self.quiet_since = time.monotonic()
        self.task: asyncio.Task[None] | None = None

    @property
    def lost(self) -> bool:
        return time.monotonic() >= self.until

    async def renew(self) -> None:
        began = time.monotonic()
        await self.receiver.session.renew_lock()
        self.until = began + self.window


class SessionsConsumer:
    """See `contracts.Consumer`."""

    def __init__(self, namespace: Namespace, queue: str, prefetch: int, window: float) -> None:
        self._namespace = namespace
        self._queue = queue
        self._prefetch = prefetch
        self._window = window
        self._client: Any = None
        self._copies = Link(namespace, queue, lambda client: client.get_queue_sender(queue))
        self._sessions: set[_Session] = set()
        self._arrived: deque[Delivery] = deque()
        self._asked = 0  # how many more the tasks are asking for at this moment
        self._failure: Exception | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    # -- receiving

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            self._news.clear()
            found: list[Delivery] = []
            while self._arrived and len(found) < limit:
                delivery = self._arrived.popleft()
                if self._owns(delivery.handle):
                    found.append(delivery)
            if found:
                return found
            if self._failure is not None:
                error, self._failure = self._failure, None
                raise error
            if self._accepting is None and self._may_accept():
                self._accepting = asyncio.create_task(self._accept())
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)

    def _room(self) -> int:
        return self._prefetch - sum(len(session.held) for session in self._sessions)

    def _may_accept(self) -> bool:
        waiting = sum(bool(session.delayed) for session in self._sessions)
        return self._room() > 0 and len(self._sessions) - waiting < AT_ONCE and waiting < AT_ONCE

    async def _accept(self) -> None:
        """Take the next session that has messages and no consumer; none for a while is no error."""
        from azure.servicebus import NEXT_AVAILABLE_SESSION
        from azure.servicebus.exceptions import OperationTimeoutError

        began = time.monotonic()
        receiver: Any = None
        try:
            if self._client is None:
                self._client = self._namespace.client()
            receiver = self._client.get_queue_receiver(
                self._queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=PATIENCE
            )
            async with asyncio.timeout(PATIENCE + self._namespace.timeout):
                await receiver.__aenter__()
            session = _Session(receiver, self._window)
            self._sessions.add(session)
            session.task = asyncio.create_task(self._read(session))
        except OperationTimeoutError:
            await self._close(receiver)
            await asyncio.sleep(max(SLICE - (time.monotonic() - began), 0.0))
        except asyncio.CancelledError:
            await self._close(receiver)
            raise
        except Exception as error:
            await self._close(receiver)
            self._failure = translate(error, self._namespace, self._queue)
            await self._drop_client()
        finally:
            self._accepting = None
            self._news.set()

    async def _read(self, session: _Session) -> None:
        """Read from ``session`` until it is lost, or has nothing for a while."""
        try:
            while not session.lost:
                now = time.monotonic()
                if session.until - now < session.window / 2 and session.delayed and not session.held:
                    await self._use(session, lambda end: session.renew())
                while session.delayed and session.delayed[0].due <= now:  # those behind it wait for it
                    before = session.delayed.pop(0).delivery
                    self._deliver(session, before.packet, before.attempt + 1, before.handle.message)
                room = self._room() - self._asked
                if session.delayed or room <= 0:
                    await asyncio.sleep(TICK)
                    continue
                if not await self._take(session, (room + 1) // 2):  # others ask at the same time
                    if not session.held and time.monotonic() - session.quiet_since >= IDLE:
                        return
                    await asyncio.sleep(2 * TICK)
        except Exception as error:
            failure = translate(error, self._namespace, self._queue)
            if not isinstance(failure, _Lost):
                self._failure = failure
        finally:
            self._sessions.discard(session)
            session.until = 0.0
            self._news.set()
            await self._close(session.receiver)

    async def _take(self, session: _Session, room: int) -> bool:
        self._asked += room
        try:
            found = await self._use(session, lambda end: end.receive_messages(room, max_wait_time=SLICE))
        finally:
            self._asked -= room
        for message in found:
            self._deliver(session, *packet_of(message), message)
        return bool(found)

    def _deliver(self, session: _Session, packet: Packet, attempt: int, message: Any) -> None:
        held = _Held(session, message)
        session.held.add(held)
        session.quiet_since = time.monotonic()
        self._arrived.append(Delivery(packet=packet, queue=self._queue, attempt=attempt, handle=held))
        self._news.set()

    async def _use(self, session: _Session, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """What ``work`` makes of the session's receiver. After an error nobody knows what that is worth."""
        from azure.servicebus import exceptions as sdk

        async with session.turn:
            try:
                async with asyncio.timeout(self._namespace.timeout):
                    return await work(session.receiver)
            except (sdk.MessageLockLostError, sdk.MessageNotFoundError, sdk.MessageAlreadySettled) as error:
                raise _Lost(str(error)) from error
            except sdk.SessionLockLostError as error:
                session.until = 0.0
                raise _Lost(str(error)) from error
            except BaseException:
                session.until = 0.0
                raise

    # -- settling

    def _owns(self, held: _Held) -> bool:
        return held in held.session.held and not held.session.lost

    async def _settle(
        self, deliveries: Sequence[Delivery], work: Callable[[Any, Any], Coroutine[Any, Any, Any]]
    ) -> list[bool]:
        """Do ``work`` with each that is still ours, which it is no longer then."""
        answers = []
        for delivery in deliveries:
            held: _Held = delivery.handle
            mine = self._owns(held)
            if mine:
                try:
                    await self._use(held.session, lambda end: work(end, held.message))  # noqa: B023
                except _Lost:
                    mine = False
                except Exception as error:
                    raise translate(error, self._namespace, self._queue) from error
            held.session.held.discard(held)
            self._news.set()
            answers.append(mine)
        return answers

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return await self._settle(deliveries, lambda end, message: end.complete_message(message))

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        answers = []
        for delivery in deliveries:
            held: _Held = delivery.handle
            mine = self._owns(held)
            if mine and delay > 0 and delivery.packet.ordering_key is None:  # it holds up none of its session
                copy = message_of(delivery.packet, sessions=True, before=delivery.attempt)
                due = datetime.now(UTC) + timedelta(seconds=delay)
                await self._copies.use(lambda sender: sender.schedule_messages(copy, due))  # noqa: B023
                (mine,) = await self.ack([delivery])
            elif mine:
                insort(held.session.delayed, _Delayed(time.monotonic() + delay, delivery), key=_place)
                held.session.held.discard(held)
                self._news.set()
            answers.append(mine)
        return answers

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """By the queue's lock duration, however many seconds are asked for, and session by session."""
        for session in {delivery.handle.session for delivery in deliveries if self._owns(delivery.handle)}:
            try:
                await self._use(session, lambda end: session.renew())  # noqa: B023
            except _Lost:
                continue
            except Exception as error:
                raise translate(error, self._namespace, self._queue) from error
        return [self._owns(delivery.handle) for delivery in deliveries]

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        why = description_of(headers)
        (answer,) = await self._settle(
            [delivery], lambda end, message: end.dead_letter_message(message, reason=GIVEN_UP, error_description=why)
        )
        return answer

    async def flush(self) -> None:
        return None

    # -- the end

    async def close(self) -> None:
        """What cannot be given back comes when the lock of its session ends."""
        tasks = [task for task in (self._accepting, *(session.task for session in self._sessions)) if task is not None]
        sessions = list(self._sessions)
        for session in sessions:
            with suppress(Exception):
                for message in [
                    *(held.message for held in session.held),
                    *(each.delivery.handle.message for each in session.delayed),
                ]:
                    await self._use(session, lambda end: end.abandon_message(message))  # noqa: B023
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._arrived.clear()
        self._failure = None
        await self._copies.close()
        await self._drop_client()

    async def _close(self, end: Any) -> None:
        if end is not None:
            with suppress(Exception):
                async with asyncio.timeout(self._namespace.timeout):
                    await end.close()

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        await self._close(client)


class _Lost(BrokerUnavailable):
    """A lock has ended: another consumer may have the session, or the message."""
