"""Sessions of Azure Service Bus, with a stand-in for the SDK: what is read, held, renewed and given back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus.amqp import AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    SessionLockLostError,
)

from effectonce.backends.servicebus import sessions as module
from effectonce.backends.servicebus.client import LockLost
from effectonce.backends.servicebus.sessions import ServiceBusSessionsConsumer
from effectonce.errors import BrokerUnavailable
from tests.harness.waiting import auntil


class Message:
    delivery_count = 0
    message_id = subject = correlation_id = content_type = None
    body_type = AmqpMessageBodyType.DATA

    def __init__(self, number: int, key: str | None = "key") -> None:
        self.sequence_number = number
        self.body = [b"%d" % number]
        self.application_properties = {} if key is None else {"eo-ordering-key": key}


class Session:
    """A locked session, and the receiver that reads from it."""

    def __init__(self, *messages: Message, lock_s: float | None = 60.0) -> None:
        self.session = self
        self.locked_until_utc = None if lock_s is None else datetime.now(UTC) + timedelta(seconds=lock_s)
        self.messages = list(messages)
        self.calls: list[tuple[str, int]] = []  # what was done with which message
        self.requested: list[int] = []  # how many messages each receive asked for
        self.read_takes_s = 0.0
        self.renewals = 0
        self.error: Exception | None = None
        self.is_closed = False

    async def __aenter__(self) -> Session:
        if self.error is not None:
            raise self.error
        return self

    async def close(self) -> None:
        self.is_closed = True

    async def renew_lock(self) -> None:
        self.renewals += 1

    async def receive_messages(self, limit: int, max_wait_time: float) -> list[Message]:
        self._fail()
        self.requested.append(limit)
        received, self.messages = self.messages[:limit], self.messages[limit:]
        await asyncio.sleep(self.read_takes_s)
        return received

    async def complete_message(self, message: Message) -> None:
        self._note("completed", message)

    async def abandon_message(self, message: Message) -> None:
        self._note("abandoned", message)

    async def dead_letter_message(self, message: Message, reason: str, error_description: str) -> None:
        self._note("dead-lettered", message)

    def _note(self, call: str, message: Message) -> None:
        self._fail()
        self.calls.append((call, message.sequence_number))

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


class Sender:
    def __init__(self) -> None:
        self.scheduled: list[tuple[Any, datetime]] = []

    async def __aenter__(self) -> Sender:
        return self

    async def schedule_messages(self, message: Any, due: datetime) -> None:
        self.scheduled.append((message, due))

    async def close(self) -> None:
        pass


class ServiceBus:
    """A namespace, and the SDK's client for it. It has the sessions that are waiting, and then no more."""

    timeout = 5.0

    def __init__(self, *sessions: Session) -> None:
        self.waiting = list(sessions)
        self.accepted = 0
        self.asked = 0  # how often a session was asked for
        self.sender = Sender()
        self.closed_clients = 0

    def client(self) -> ServiceBus:
        return self

    def get_queue_receiver(self, queue: str, session_id: object, max_wait_time: float) -> Session:
        self.asked += 1
        self.accepted += bool(self.waiting)
        if self.waiting:
            return self.waiting.pop(0)
        nothing = Session()
        nothing.error = OperationTimeoutError()
        return nothing

    def get_queue_sender(self, queue: str) -> Sender:
        return self.sender

    async def close(self) -> None:
        self.closed_clients += 1


@asynccontextmanager
async def consuming(
    *sessions: Session, prefetch: int = 20, window: float = 60.0
) -> AsyncIterator[tuple[ServiceBusSessionsConsumer, ServiceBus]]:
    service: Any = ServiceBus(*sessions)
    consumer = ServiceBusSessionsConsumer(service, "q", prefetch, window)
    try:
        yield consumer, service
    finally:
        await consumer.close()


async def receive(consumer: ServiceBusSessionsConsumer, count: int) -> list[Any]:
    deliveries: list[Any] = []
    async with asyncio.timeout(10):
        while len(deliveries) < count:
            deliveries += await consumer.receive(count - len(deliveries), 0.2)
    return deliveries


def bodies(deliveries: list[Any]) -> list[bytes]:
    return [delivery.packet.body for delivery in deliveries]


@pytest.fixture
def set_constant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    return lambda name, value: monkeypatch.setattr(module, name, value)


class Clock:
    """The machine's clock, which a test can advance."""

    def __init__(self) -> None:
        self._offset_s = 0.0

    def advance(self, seconds: float) -> None:
        self._offset_s += seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._offset_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


# -- receiving


async def test_what_a_session_holds_is_delivered_in_its_order_and_completed() -> None:
    session = Session(Message(1), Message(2))
    async with consuming(session) as (consumer, _):
        deliveries = await receive(consumer, 2)
        assert bodies(deliveries) == [b"1", b"2"]
        assert await consumer.ack(deliveries) == [True, True]
        assert await consumer.ack(deliveries) == [False, False]
    assert session.calls == [("completed", 1), ("completed", 2)]


async def test_a_receive_returns_no_more_than_was_asked_for() -> None:
    async with consuming(Session(Message(1), Message(2), Message(3))) as (consumer, _):
        await auntil_arrived(consumer, 3)
        assert bodies(list(await consumer.receive(2, 5.0))) == [b"1", b"2"]
        assert bodies(list(await consumer.receive(2, 5.0))) == [b"3"]


async def auntil_arrived(consumer: ServiceBusSessionsConsumer, count: int) -> None:
    receiving = asyncio.create_task(consumer.receive(0, 0.0))
    await receiving
    await auntil(lambda: len(consumer._arrived) == count)


async def test_a_receive_without_a_message_ends_with_its_wait() -> None:
    async with consuming() as (consumer, _):
        async with asyncio.timeout(4):
            assert await consumer.receive(1, 0.05) == []


async def test_no_more_is_read_than_the_prefetch_allows() -> None:
    session = Session(*(Message(n) for n in range(9)))
    async with consuming(session, prefetch=4) as (consumer, _):
        deliveries = await receive(consumer, 4)
        await asyncio.sleep(0.1)
        assert await consumer.receive(5, 0.0) == []
        assert session.requested[0] == 2  # half of the room: another session may need the rest
        await consumer.ack(deliveries)
        assert bodies(await receive(consumer, 1)) == [b"4"]


async def test_a_receiver_that_locked_no_session_is_closed() -> None:
    """Its link would go on waiting for a session, and lock one that nothing reads."""
    unlocked = Session()
    unlocked.error = OperationTimeoutError()
    async with consuming(unlocked) as (consumer, _):
        await consumer.receive(1, 0.0)
        await auntil(lambda: unlocked.is_closed)


async def test_a_receiver_that_still_waits_for_a_session_is_closed_with_its_consumer() -> None:
    class Waiting(Session):
        is_entered = False

        async def __aenter__(self) -> Session:
            self.is_entered = True
            return await asyncio.Future()

    waiting = Waiting()
    async with consuming(waiting) as (consumer, _):
        await consumer.receive(1, 0.0)
        await auntil(lambda: waiting.is_entered)
    assert waiting.is_closed


async def test_several_sessions_are_read_at_once() -> None:
    async with consuming(Session(Message(1)), Session(Message(2))) as (consumer, service):
        assert sorted(bodies(await receive(consumer, 2))) == [b"1", b"2"]
        assert service.accepted == 2


async def test_no_more_sessions_are_locked_than_can_be_read(set_constant: Callable[[str, float], None]) -> None:
    set_constant("MAX_READ_SESSIONS", 1)
    async with consuming(Session(Message(1)), Session(Message(2))) as (consumer, service):
        await receive(consumer, 1)
        assert await consumer.receive(1, 0.05) == []
        assert service.accepted == 1


async def test_a_session_that_waits_for_a_delay_makes_room_for_another(
    set_constant: Callable[[str, float], None],
) -> None:
    set_constant("MAX_READ_SESSIONS", 2)
    async with consuming(*(Session(Message(n)) for n in range(4))) as (consumer, service):
        first, _ = await receive(consumer, 2)
        await consumer.nack([first], 60.0)
        third = await receive(consumer, 1)
        assert bodies(third) == [b"2"]
        await consumer.nack(third, 60.0)
        assert await consumer.receive(1, 0.05) == []  # now as many wait as may
        assert service.accepted == 3


async def test_an_idle_session_is_released(set_constant: Callable[[str, float], None]) -> None:
    set_constant("RELEASE_IDLE_AFTER_S", 0.05)
    session = Session(Message(1))
    async with consuming(session) as (consumer, _):
        await consumer.ack(await receive(consumer, 1))
        await auntil(lambda: session.is_closed)


async def test_a_session_with_an_unsettled_message_is_not_released(set_constant: Callable[[str, float], None]) -> None:
    set_constant("RELEASE_IDLE_AFTER_S", 0.0)
    session = Session(Message(1))
    async with consuming(session) as (consumer, _):
        deliveries = await receive(consumer, 1)
        reads = len(session.requested)
        await auntil(lambda: len(session.requested) > reads + 1)
        assert await consumer.ack(deliveries) == [True]


async def test_a_session_whose_message_was_nacked_during_a_read_is_not_released(
    set_constant: Callable[[str, float], None],
) -> None:
    set_constant("RELEASE_IDLE_AFTER_S", 0.0)
    session = Session(Message(1))
    session.read_takes_s = 0.02
    async with consuming(session) as (consumer, _):
        deliveries = await receive(consumer, 1)
        reads = len(session.requested)
        await auntil(lambda: len(session.requested) > reads)
        await consumer.nack(deliveries, 0.1)
        assert [delivery.attempt for delivery in await receive(consumer, 1)] == [2]


async def test_a_session_is_not_released_before_it_was_idle_for_long(
    set_constant: Callable[[str, float], None],
) -> None:
    set_constant("RELEASE_IDLE_AFTER_S", 60.0)
    session = Session(Message(1))
    async with consuming(session) as (consumer, _):
        await consumer.ack(await receive(consumer, 1))
        reads = len(session.requested)
        await auntil(lambda: len(session.requested) > reads + 2)
        assert not session.is_closed


# -- giving back


async def test_a_nacked_message_is_delivered_again_before_those_behind_it() -> None:
    session = Session(Message(1))
    async with consuming(session) as (consumer, _):
        first = await receive(consumer, 1)
        assert await consumer.nack(first, 0.1) == [True]
        session.messages.append(Message(2))
        again = await receive(consumer, 2)
        assert [(delivery.packet.body, delivery.attempt) for delivery in again] == [(b"1", 2), (b"2", 1)]
        assert await consumer.ack(first + again) == [False, True, True]


async def test_messages_nacked_in_any_order_keep_that_of_the_queue() -> None:
    async with consuming(Session(Message(1), Message(2), Message(3))) as (consumer, _):
        first, second, third = await receive(consumer, 3)
        await consumer.nack([third, first, second])
        assert bodies(await receive(consumer, 3)) == [b"1", b"2", b"3"]


async def test_a_message_waits_behind_the_delay_of_one_before_it() -> None:
    async with consuming(Session(Message(1), Message(2))) as (consumer, _):
        first, second = await receive(consumer, 2)
        await consumer.nack([first], 60.0)
        await consumer.nack([second])
        assert await consumer.receive(2, 0.1) == []


async def test_without_an_ordering_key_a_delayed_message_holds_up_no_other() -> None:
    session = Session(Message(1, key=None), Message(2, key=None))
    async with consuming(session) as (consumer, service):
        first, second = await receive(consumer, 2)
        asked_at = datetime.now(UTC)
        assert await consumer.nack([first], 60.0) == [True]
        ((copy, due),) = service.sender.scheduled
        assert timedelta(seconds=60) <= due - asked_at < timedelta(seconds=70)
        assert copy.application_properties["eo-deliveries"] == 1
        assert copy.session_id is not None
        assert session.calls == [("completed", 1)]
        assert await consumer.nack([second]) == [True]  # without a delay it needs no copy
        assert bodies(await receive(consumer, 1)) == [b"2"]
        assert len(service.sender.scheduled) == 1


async def test_close_abandons_what_is_unsettled_or_delayed_and_closes_all() -> None:
    session = Session(Message(1), Message(2), Message(3))
    async with consuming(session) as (consumer, service):
        first, second, _ = await receive(consumer, 3)
        await consumer.nack([first], 60.0)
        await consumer.ack([second])
    assert sorted(session.calls) == [("abandoned", 1), ("abandoned", 3), ("completed", 2)]
    assert session.is_closed
    assert service.closed_clients == 1


# -- locks


async def test_a_delivery_is_ours_until_the_service_says_that_its_lock_ends(clock: Clock) -> None:
    for later_s, is_ours in ((50, True), (70, False)):
        async with consuming(Session(Message(1), lock_s=60.0), window=300.0) as (consumer, _):
            deliveries = await receive(consumer, 1)
            clock.advance(later_s)
            assert await consumer.ack(deliveries) == [is_ours]


@pytest.mark.parametrize("lock_s", [3600.0, None])
async def test_a_delivery_is_ours_for_less_than_a_window_whatever_the_clock_of_the_service_says(
    clock: Clock, lock_s: float | None
) -> None:
    for later_s, is_ours in ((50.0, True), (59.95, False)):
        async with consuming(Session(Message(1), lock_s=lock_s), window=60.0) as (consumer, _):
            deliveries = await receive(consumer, 1)
            clock.advance(later_s)
            assert await consumer.ack(deliveries) == [is_ours]


async def test_what_arrived_before_the_lock_ended_is_not_returned_after_it(clock: Clock) -> None:
    async with consuming(Session(Message(1))) as (consumer, _):
        await auntil_arrived(consumer, 1)
        clock.advance(60)
        assert await consumer.receive(1, 0.0) == []


async def test_extending_renews_the_lock_of_a_session_once(clock: Clock) -> None:
    session = Session(Message(1), Message(2))
    async with consuming(session) as (consumer, _):
        deliveries = await receive(consumer, 2)
        clock.advance(40)
        assert await consumer.extend(deliveries, 60.0) == [True, True]
        assert session.renewals == 1
        clock.advance(40)
        assert await consumer.ack(deliveries) == [True, True]
        assert await consumer.extend(deliveries, 60.0) == [False, False]
        assert session.renewals == 1


async def test_the_lock_is_renewed_while_a_nacked_message_waits(clock: Clock) -> None:
    session = Session(Message(1))
    async with consuming(session) as (consumer, _):
        await consumer.nack(await receive(consumer, 1), 70.0)
        clock.advance(40)
        await auntil(lambda: session.renewals == 1)
        clock.advance(40)
        assert bodies(await receive(consumer, 1)) == [b"1"]


async def test_a_lock_is_not_renewed_before_half_of_it_is_over() -> None:
    session = Session(Message(1))
    async with consuming(session) as (consumer, _):
        await consumer.nack(await receive(consumer, 1), 0.05)
        await receive(consumer, 1)
        assert session.renewals == 0


# -- errors


async def test_f56_a_settlement_after_the_messages_lock_says_so_and_the_session_goes_on() -> None:
    session = Session(Message(1), Message(2))
    async with consuming(session) as (consumer, _):
        first, second = await receive(consumer, 2)
        session.error = MessageLockLostError(message="late")
        assert await consumer.ack([first]) == [False]
        session.error = None
        assert await consumer.ack([second]) == [True]


async def test_a_settlement_that_fails_raises_and_ends_the_session() -> None:
    session = Session(Message(1), Message(2))
    async with consuming(session) as (consumer, _):
        first, second = await receive(consumer, 2)
        session.error = ServiceBusConnectionError(message="gone")
        with pytest.raises(BrokerUnavailable):
            await consumer.ack([first])
        session.error = None
        assert await consumer.ack([second]) == [False]
        await auntil(lambda: session.is_closed)


async def test_a_failure_to_read_a_session_is_the_error_of_a_receive() -> None:
    session = Session()
    async with consuming(session) as (consumer, _):
        await consumer.receive(1, 0.01)
        session.error = ServiceBusConnectionError(message="gone")
        with pytest.raises(BrokerUnavailable, match="gone"):
            await receive(consumer, 1)
        assert await consumer.receive(1, 0.0) == []  # it is raised once
        assert session.is_closed


async def test_a_session_whose_lock_is_lost_is_no_error() -> None:
    session = Session()
    async with consuming(session) as (consumer, service):
        await consumer.receive(1, 0.01)
        assert session.requested
        session.error = SessionLockLostError(message="gone")
        service.waiting.append(Session(Message(2)))
        assert bodies(await receive(consumer, 1)) == [b"2"]


async def test_a_refused_session_is_the_error_of_a_receive_and_drops_the_client() -> None:
    session = Session()
    session.error = ServiceBusConnectionError(message="down")
    async with consuming(session) as (consumer, service):
        with pytest.raises(BrokerUnavailable, match="down") as caught:
            await receive(consumer, 1)
        assert not isinstance(caught.value, LockLost)
        assert session.is_closed
        assert service.closed_clients == 1
