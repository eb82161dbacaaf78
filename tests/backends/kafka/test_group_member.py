"""A membership in a Kafka group, without a broker: what it does in the callbacks of a rebalance."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from effectonce.backends.kafka import group_member
from effectonce.backends.kafka.endpoint import parse_cluster
from effectonce.backends.kafka.group_member import POLL_S, POLLS_BEFORE_PAUSE, GroupMember
from effectonce.errors import BrokerUnavailable, ConfigurationError
from effectonce.values.urls import Address

from .test_offset_tracker import Message


class Client:
    """As much of confluent_kafka's consumer as the callbacks use."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls = 0
        self.commits: list[tuple[int, int, bool]] = []
        self._error = error

    def commit(self, *, offsets: Any, asynchronous: bool) -> None:
        self.calls += 1
        self.commits += [(offset.partition, offset.offset, asynchronous) for offset in offsets]
        if self._error is not None:
            raise self._error


@pytest.fixture
async def member(monkeypatch: pytest.MonkeyPatch) -> GroupMember:
    """One that has partition 0, and has settled the first of two messages."""
    monkeypatch.setattr(GroupMember, "_run", lambda self: None)
    member = GroupMember(parse_cluster(Address("kafka://h")), "queue", "group", 100)
    member._tracker.assign(0, 0, None)
    member._tracker.add([Message(0, 0), Message(0, 1)])
    first, _ = member._tracker.take(2, 0.0)
    assert member.settle([first], lambda tracker, delivery: tracker.ack(delivery)) == [True]
    return member


PARTITIONS = [SimpleNamespace(partition=0)]


async def test_what_is_settled_is_committed_before_a_revoked_partition_is_given_away(member: GroupMember) -> None:
    client = Client()
    member._handle_revocation(client, PARTITIONS)
    assert client.commits == [(0, 1, False)]


async def test_a_last_commit_that_fails_does_not_stop_the_rebalance(member: GroupMember) -> None:
    """Its messages are redelivered."""
    client = Client(RuntimeError("the group has gone on"))
    member._handle_revocation(client, PARTITIONS)
    assert len(client.commits) == 1


async def test_nothing_is_committed_for_a_partition_that_another_consumer_has(member: GroupMember) -> None:
    client = Client()
    member._handle_loss(client, PARTITIONS)
    member._handle_revocation(client, PARTITIONS)
    assert client.calls == 0


# -- what the thread does


class PolledClient(Client):
    """A client that is polled: it returns ``messages``, and notes what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Any] = []
        self.asked: list[Any] = []
        self.assigned: Any = None
        self.committed_offsets: list[Any] = []
        self.refusal: Exception | None = None

    def poll(self, timeout: float) -> Any:
        self.asked.append(("poll", timeout))
        return self.messages.pop(0) if self.messages else None

    def consume(self, count: int, timeout: float) -> list[Any]:
        self.asked.append(("consume", count))
        messages, self.messages = self.messages[:count], self.messages[count:]
        return messages

    def assignment(self) -> list[int]:
        return [0]

    def pause(self, partitions: Any) -> None:
        self.asked.append("pause")

    def resume(self, partitions: Any) -> None:
        self.asked.append("resume")

    def committed(self, partitions: Any, timeout: float) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return self.committed_offsets

    def incremental_assign(self, partitions: Any) -> None:
        self.assigned = list(partitions)


class ReadMessage(Message):
    """A message, or an error in place of one."""

    failure: Any = None

    def error(self) -> Any:
        return self.failure


def error_named(name: str, *, fatal: bool = False) -> Any:
    return SimpleNamespace(name=lambda: name, str=lambda: "words", fatal=lambda: fatal)


async def test_a_poll_reads_as_much_as_there_is_room_for(member: GroupMember) -> None:
    client = PolledClient()
    client.messages = [ReadMessage(0, offset) for offset in range(2, 5)]
    room = member._tracker.room()
    member._poll(client)
    assert client.asked == [("poll", POLL_S), ("consume", room - 1)]
    assert [int(each.packet.body) for each in await member.receive(9, 0.0)] == [2, 3, 4]


async def test_without_room_the_partitions_are_paused_after_a_while_and_then_resumed(
    member: GroupMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_member, "POLL_S", 0.0)
    room = member._tracker.room
    monkeypatch.setattr(member._tracker, "room", lambda: 0)
    client = PolledClient()
    for _ in range(POLLS_BEFORE_PAUSE - 1):
        member._poll(client)
    assert "pause" not in client.asked
    member._poll(client)
    assert client.asked[-2:] == ["pause", ("poll", 0)]
    monkeypatch.setattr(member._tracker, "room", room)
    for _ in range(2):
        member._poll(client)
    assert client.asked.count("resume") == 1


async def test_an_error_in_place_of_a_message_is_no_message(member: GroupMember) -> None:
    client, failed = PolledClient(), ReadMessage(0, 2)
    failed.failure = error_named("_TRANSPORT")
    client.messages = [failed, ReadMessage(0, 3)]
    member._poll(client)
    assert [int(each.packet.body) for each in await member.receive(9, 0.0)] == [3]
    assert member._failure is None


@pytest.mark.parametrize(
    ("name", "fatal", "ends", "is_raised"),
    [
        ("_TRANSPORT", False, False, False),
        ("_ALL_BROKERS_DOWN", False, False, True),
        ("_TRANSPORT", True, True, True),
        ("GROUP_AUTHORIZATION_FAILED", False, True, True),
    ],
)
async def test_an_error_that_will_not_pass_ends_the_membership(
    member: GroupMember, name: str, fatal: bool, ends: bool, is_raised: bool
) -> None:
    member._connected = True
    member._handle_error(error_named(name, fatal=fatal))
    assert member._stopping is ends
    if is_raised:
        with pytest.raises((BrokerUnavailable, ConfigurationError)):
            await member.receive(1, 0.0)
    assert await member.receive(1, 0.0) == []  # it is raised once


async def test_the_cause_of_a_failure_is_not_replaced_by_its_consequence(member: GroupMember) -> None:
    member._connected = True
    member._handle_error(error_named("GROUP_AUTHORIZATION_FAILED"))
    member._handle_error(error_named("_ALL_BROKERS_DOWN"))
    with pytest.raises(ConfigurationError):
        await member.receive(1, 0.0)


async def test_a_failure_is_raised_after_the_messages_that_came_before_it(member: GroupMember) -> None:
    member._connected = True
    member._tracker.add([Message(0, 2)])
    member._handle_error(error_named("_ALL_BROKERS_DOWN"))
    assert len(await member.receive(9, 0.0)) == 1
    with pytest.raises(BrokerUnavailable):
        await member.receive(9, 0.0)


async def test_a_failure_to_connect_is_raised_when_the_member_has_given_up(member: GroupMember) -> None:
    """Not before: the client may still find a broker."""
    member._handle_error(error_named("_ALL_BROKERS_DOWN"))
    receiving = asyncio.create_task(member.receive(9, 0.0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not receiving.done()
    member.alive = False
    member._wake_receive.set()
    with pytest.raises(BrokerUnavailable):
        await asyncio.wait_for(receiving, 5)


async def test_a_nacked_message_is_received_when_it_is_due_though_nothing_else_happens(member: GroupMember) -> None:
    member._connected = True
    member._tracker.add([Message(0, 2)])
    (delivery,) = await member.receive(9, 0.0)
    assert member.settle([delivery], lambda tracker, given: tracker.nack(given, time.monotonic() + 0.02)) == [True]
    assert [again.handle.offset for again in await asyncio.wait_for(member.receive(9, 60.0), 5)] == [2]


# -- commits


async def test_progress_is_committed_once_and_again_after_it_was_refused(member: GroupMember) -> None:
    client = Client()
    member._commit(client)
    member._next_commit_at = 0.0
    member._commit(client)  # the first is not confirmed yet
    assert client.commits == [(0, 1, True)]
    member._handle_commit(error_named("x"), PARTITIONS)
    member._commit(client)
    assert client.calls == 2
    member._handle_commit(None, [SimpleNamespace(partition=0, error=None)])
    member._next_commit_at = 0.0
    member._commit(client)
    assert client.calls == 2


async def test_commits_are_some_time_apart(member: GroupMember) -> None:
    client = Client(KafkaException(error_named("x")))
    member._commit(client)
    member._commit(client)
    assert client.calls == 1
    member._next_commit_at = 0.0
    member._commit(client)  # the group was rebalancing: it is tried again
    assert client.calls == 2


async def test_a_flush_waits_until_all_that_is_settled_is_committed(member: GroupMember) -> None:
    member._connected = True
    flushing = asyncio.create_task(member.flush())
    await asyncio.sleep(0)
    assert member._next_commit_at == 0.0
    member._commit(Client())
    member._handle_commit(None, [SimpleNamespace(partition=0, error=None)])
    await asyncio.wait_for(flushing, 5)


async def test_a_member_that_is_not_connected_has_nothing_to_flush(member: GroupMember) -> None:
    await asyncio.wait_for(member.flush(), 5)


# -- assignments


async def test_a_partition_is_read_from_where_the_group_has_committed(member: GroupMember) -> None:
    client = PolledClient()
    client.committed_offsets = [SimpleNamespace(partition=1, offset=7, metadata="", error=None)]
    member._handle_assignment(client, [])
    assert client.assigned == client.committed_offsets
    member._tracker.add([Message(1, 7)])
    assert [delivery.packet.body for delivery in member._tracker.take(9, 0.0)] == [b"7"]


@pytest.mark.parametrize("is_raised", [True, False])
async def test_where_committed_offsets_cannot_be_read_nothing_is_assigned(member: GroupMember, is_raised: bool) -> None:
    client, error = PolledClient(), error_named("GROUP_AUTHORIZATION_FAILED")
    if is_raised:
        client.refusal = KafkaException(error)
    else:
        client.committed_offsets = [SimpleNamespace(partition=1, error=error)]
    member._connected = True
    member._handle_assignment(client, [])
    assert (client.assigned, member._stopping) == ([], True)
    with pytest.raises(ConfigurationError):
        await member.receive(1, 0.0)


async def test_a_member_that_stops_commits_no_more(member: GroupMember) -> None:
    client = Client()
    member._stopping = True
    member._handle_revocation(client, PARTITIONS)
    assert client.calls == 0


@pytest.mark.parametrize(
    ("session_s", "session_ms", "heartbeat_ms", "poll_ms"),
    [(45.0, 45_000, 3000, 300_000), (6.0, 6000, 2000, 300_000), (600.0, 600_000, 3000, 600_000)],
)
async def test_heartbeats_are_often_enough_for_the_session(
    member: GroupMember, session_s: float, session_ms: int, heartbeat_ms: int, poll_ms: int
) -> None:
    member._cluster = SimpleNamespace(session_timeout=session_s)  # type: ignore[assignment]
    config = member._config()
    assert (config["session.timeout.ms"], config["heartbeat.interval.ms"]) == (session_ms, heartbeat_ms)
    assert config["max.poll.interval.ms"] == poll_ms
    assert (config["enable.auto.commit"], config["enable.auto.offset.store"]) == (False, False)
