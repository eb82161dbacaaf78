"""When a consumer of Azure Service Bus asks for another session, and when it leaves sessions to others."""

from __future__ import annotations

from collections.abc import Callable

from .test_sessions import Message, Session, bodies, consuming, receive, set_constant

__all__ = ["set_constant"]


async def test_a_session_is_locked_only_where_a_message_of_it_can_be_read() -> None:
    """A lock without room for a message would keep it from a consumer that has room."""
    async with consuming(Session(Message(1)), Session(Message(2)), prefetch=1) as (consumer, service):
        (first,) = await receive(consumer, 1)
        assert not await consumer.receive(1, 0.05)
        assert service.accepted == 1
        await consumer.ack([first])
        assert bodies(await receive(consumer, 1)) == [b"2"]
    async with consuming(Session(Message(1)), Session(Message(2)), prefetch=2) as (consumer, _):
        assert sorted(bodies(await receive(consumer, 2))) == [b"1", b"2"], "there was room for one more"


async def test_where_no_session_waits_the_service_is_asked_again_after_a_pause(
    set_constant: Callable[[str, float], None],
) -> None:
    """A service that answers at once is not asked in a loop, and a session that comes later is still found."""
    set_constant("MAX_POLL_S", 60.0)
    async with consuming() as (consumer, service):
        assert not await consumer.receive(1, 0.05)
        assert service.asked == 1
    set_constant("MAX_POLL_S", 0.01)
    async with consuming() as (consumer, service):
        assert not await consumer.receive(1, 0.03)
        service.waiting.append(Session(Message(1)))
        assert bodies(await receive(consumer, 1)) == [b"1"]
