"""A membership in a Kafka group, without a broker: what it does in the callbacks of a rebalance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from effectonce.backends.kafka.group_member import GroupMember

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
    member = GroupMember(None, "queue", "group", 100)  # type: ignore[arg-type]
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
