"""How queues are named and declared, with a stand-in for the channel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pamqp.commands
import pytest

from effectonce.backends.rabbitmq.endpoint import RabbitMQEndpoint, RabbitMQRefusal
from effectonce.backends.rabbitmq.queues import (
    MAX_DELAY_MS,
    MissingRabbitMQQueue,
    QueueDeclarations,
    QueueType,
    delay_step,
)
from effectonce.errors import ConfigurationError
from effectonce.values.urls import Address

COUNTED = SimpleNamespace(message_count=3)


class Channel:
    """Takes commands, and refuses those that name ``refused``."""

    commands = pamqp.commands

    def __init__(self, version: str = "3.13.1", refused: str = "", status: int = 406) -> None:
        self.connection: Any = SimpleNamespace(server_properties={"version": version})
        self.calls: list[Any] = []
        self._refused, self._status = refused, status

    async def call(self, command: Any) -> list[Any]:
        if self._refused and self._refused == command.queue:
            raise RabbitMQRefusal("no", self._status)
        self.calls.append(command)
        return [COUNTED]

    def declared(self) -> dict[str, Any]:
        return {call.queue: call.arguments for call in self.calls if call.name == "Queue.Declare" and not call.passive}


def declarations(queue_type: QueueType = "quorum", exchange: str = "", declares: bool = True) -> QueueDeclarations:
    return QueueDeclarations(RabbitMQEndpoint(Address("amqp://h")), queue_type, exchange, declares)


async def declare(channel: Any, queues: QueueDeclarations) -> None:
    await queues.declare(channel, "q")


async def test_a_quorum_queue_passes_dead_letters_on_safely() -> None:
    channel = Channel()
    await declare(channel, declarations())
    assert channel.declared() == {
        "q.dead": {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000},
        "q": {
            "x-queue-type": "quorum",
            "x-delivery-limit": 1_000_000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "q.dead",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    }
    assert all(call.durable for call in channel.calls)


async def test_a_classic_queue_is_declared_as_other_clients_declare_it() -> None:
    channel: Any = Channel()
    await declare(channel, declarations("classic"))
    assert channel.declared() == {"q.dead": {}, "q": {}}
    await declarations("classic").declare_delay(channel, "q", 300)
    assert channel.declared()["q.delay.300"] == {
        "x-message-ttl": 300,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "q",
    }


async def test_a_queue_of_others_is_looked_up_and_not_declared() -> None:
    channel = Channel()
    await declare(channel, declarations(declares=False))
    assert list(channel.declared()) == ["q.dead"]
    assert [call.queue for call in channel.calls if call.passive] == ["q"]


@pytest.mark.parametrize("exchange", ["", "shop"])
async def test_a_queue_is_bound_to_the_exchange_if_there_is_one(exchange: str) -> None:
    channel = Channel()
    await declare(channel, declarations(exchange=exchange))
    bound = [(call.queue, call.exchange, call.routing_key) for call in channel.calls if call.name == "Queue.Bind"]
    assert bound == ([("q", "shop", "q")] if exchange else [])


@pytest.mark.parametrize(
    ("queue_type", "version", "is_refused"),
    [
        ("quorum", "3.9.29", True),
        ("quorum", "3.10.0", False),
        ("quorum", "4.0.1", False),
        ("quorum", "2.8", True),
        ("quorum", "", False),  # a server that does not say which it is
        ("quorum", "x.y", False),
        ("classic", "3.9.29", False),
    ],
)
async def test_quorum_queues_need_a_server_on_which_they_lose_nothing(
    queue_type: QueueType, version: str, is_refused: bool
) -> None:
    channel = Channel(version)
    if is_refused:
        with pytest.raises(ConfigurationError, match="upgrade"):
            await declare(channel, declarations(queue_type))
        assert channel.calls == []
    else:
        await declare(channel, declarations(queue_type))


@pytest.mark.parametrize(("queue_type", "other"), [("quorum", "classic"), ("classic", "quorum")])
async def test_a_queue_with_other_settings_names_the_other_type(queue_type: QueueType, other: str) -> None:
    with pytest.raises(ConfigurationError, match=f"queue_type={other}"):
        await declare(Channel(refused="q"), declarations(queue_type))


async def test_any_other_refusal_is_passed_on_as_it_is() -> None:
    with pytest.raises(RabbitMQRefusal, match="no"):
        await declare(Channel(refused="q", status=403), declarations())


async def test_messages_are_counted_in_a_queue_that_exists() -> None:
    channel: Any = Channel()
    assert await declarations().count_messages(channel, "q") == 3
    missing: Any = Channel(refused="q", status=404)
    with pytest.raises(MissingRabbitMQQueue):
        await declarations().count_messages(missing, "q")
    forbidden: Any = Channel(refused="q", status=403)
    with pytest.raises(RabbitMQRefusal):
        await declarations().count_messages(forbidden, "q")


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [
        (0.001, 100),
        (0.1, 100),
        (0.1001, 150),
        (0.8, 800),
        (0.801, 1000),
        (8.0, 8000),
        (8.001, 10_000),
        (3e6, 3_000_000_000),
        (4.2e6, MAX_DELAY_MS),
        (1e12, MAX_DELAY_MS),
    ],
)
def test_a_delay_is_rounded_up_to_the_next_step(seconds: float, milliseconds: int) -> None:
    assert delay_step(seconds) == milliseconds
