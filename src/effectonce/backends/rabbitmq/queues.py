"""The RabbitMQ queues behind one queue: itself, its dead letters, and those in which messages wait for their delay.

A delay queue ``{queue}.delay.{milliseconds}`` dead-letters a message to the queue when its TTL ends. Retries wait
there, and messages that were published with a delay. There is one for each of a few times: delays are rounded up.

Queues are quorum queues by default. A quorum queue dead-letters safely: it removes a message only after the next queue
has confirmed it. So no message is lost on its way, whether it is delayed or dead-lettered by the server. RabbitMQ
4 dead-letters (or, without a dead-letter queue, drops) a message that was delivered 20 times. Our queues raise that
limit so far that it is never reached, since the worker counts attempts. They still have a dead-letter queue, in case a
policy sets a lower limit.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from effectonce.errors import ConfigurationError, show

from .channel import RabbitMQChannel
from .connection import RabbitMQConnection
from .endpoint import RabbitMQEndpoint, RabbitMQRefusal

QueueType = Literal["quorum", "classic"]

#: A delay is rounded up to one of these times a power of ten, so that there are few delay queues.
DELAY_STEPS_MS: Final = (100, 150, 200, 300, 400, 600, 800)
MAX_DELAY_MS: Final = 2**32 - 1  # the longest TTL that RabbitMQ takes: seven weeks
MIN_QUORUM_VERSION: Final = (3, 10)
UNREACHED_DELIVERY_LIMIT: Final = 1_000_000


class MissingRabbitMQQueue(ConfigurationError):
    """There is no queue of that name, or a message was routed to none."""


def missing_queue(endpoint: RabbitMQEndpoint, queue: str) -> MissingRabbitMQQueue:
    return MissingRabbitMQQueue(
        f"{endpoint.shown} has no queue {show(queue)}; start its worker, which declares it, or declare it: "
        f"connect_broker(url).declare({show(queue)!r})"
    )


def dead_letter_queue(queue: str) -> str:
    return f"{queue}.dead"


def delay_queue(queue: str, milliseconds: int) -> str:
    return f"{queue}.delay.{milliseconds}"


def delay_step(delay: float) -> int:
    """Round ``delay`` seconds up to the TTL of a delay queue, in milliseconds."""
    wanted, power = min(delay * 1000, MAX_DELAY_MS), 1
    while wanted > DELAY_STEPS_MS[-1] * power:
        power *= 10
    return min(MAX_DELAY_MS, next(step * power for step in DELAY_STEPS_MS if wanted <= step * power))


class QueueDeclarations:
    """How the queues of one server are declared."""

    def __init__(self, endpoint: RabbitMQEndpoint, queue_type: QueueType, exchange: str, declares: bool) -> None:
        self.endpoint = endpoint
        self.queue_type = queue_type
        self.exchange = exchange
        #: Whether we declare the queue itself; its dead-letter and delay queues are declared in any case.
        self.declares = declares

    @property
    def max_delay_s(self) -> float:
        """The longest delay of a published message; 0: it cannot be delayed."""
        return 0.0 if self.queue_type == "classic" or self.exchange else MAX_DELAY_MS / 1000

    @property
    def delay_limit(self) -> str:
        """Why `max_delay_s` is what it is."""
        if self.queue_type == "classic":
            return "a classic queue may lose what it passes on after a delay, and queue_type=quorum does not"
        if self.exchange:
            return "a delayed message goes to one queue, and not to the queues of an exchange"
        return "that is the longest TTL of RabbitMQ"

    def unrouted(self, queue: str) -> MissingRabbitMQQueue:
        """Make the error for messages to ``queue`` that reached none. It says who declares or binds it."""
        if self.exchange:
            fact = f"exchange {show(self.exchange)} of {self.endpoint.shown} has no queue {show(queue)} bound to it"
            remedy = f"start its worker, or run connect_broker(url).declare({show(queue)!r}): both bind it"
        else:
            fact = f"{self.endpoint.shown} has no queue {show(queue)}"
            remedy = "declare=no leaves that to you: create it, or leave out declare=no"
        return MissingRabbitMQQueue(f"{fact}; {remedy}")

    def _arguments(self, **arguments: Any) -> dict[str, Any]:
        if self.queue_type == "classic":
            return arguments  # no more: so other clients that declare the queue plainly mean the same queue
        return {"x-queue-type": "quorum", "x-delivery-limit": UNREACHED_DELIVERY_LIMIT, **arguments}

    def _dead_letter_arguments(self, target_queue: str) -> dict[str, Any]:
        target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target_queue}
        if self.queue_type == "classic":
            return target
        return {**target, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}

    async def declare(self, channel: RabbitMQChannel, queue: str) -> None:
        """Declare the queue and its dead-letter queue, and bind it to the exchange where there is one."""
        self._require_version(channel.connection)
        await self.declare_dead_letters(channel, queue)
        dead_letter_arguments = (
            {} if self.queue_type == "classic" else self._dead_letter_arguments(dead_letter_queue(queue))
        )
        if self.declares:
            await self._declare_queue(channel, queue, self._arguments(**dead_letter_arguments))
        else:
            await self.count_messages(channel, queue)
        if self.exchange:
            await channel.call(channel.commands.Queue.Bind(queue=queue, exchange=self.exchange, routing_key=queue))

    async def declare_dead_letters(self, channel: RabbitMQChannel, queue: str) -> None:
        await self._declare_queue(channel, dead_letter_queue(queue), self._arguments())

    async def declare_delay(self, channel: RabbitMQChannel, queue: str, milliseconds: int) -> None:
        arguments = self._arguments(**{"x-message-ttl": milliseconds}, **self._dead_letter_arguments(queue))
        await self._declare_queue(channel, delay_queue(queue, milliseconds), arguments)

    async def _declare_queue(self, channel: RabbitMQChannel, name: str, arguments: dict[str, Any]) -> None:
        try:
            await channel.call(channel.commands.Queue.Declare(queue=name, durable=True, arguments=arguments))
        except RabbitMQRefusal as error:
            if error.status != 406:
                raise
            other = "classic" if self.queue_type == "quorum" else "quorum"
            raise ConfigurationError(
                f"the queue {show(name)} exists with other settings than effectonce declares ({error}); use "
                f"queue_type={other} if it is a {other} queue, declare=no to use it as it is, or delete it once it is "
                "empty: effectonce declares it again"
            ) from error

    async def count_messages(self, channel: RabbitMQChannel, queue: str) -> int:
        """Count the messages that wait in ``queue``. `MissingRabbitMQQueue` where there is no such queue."""
        try:
            (declared,) = await channel.call(channel.commands.Queue.Declare(queue=queue, passive=True))
        except RabbitMQRefusal as error:
            if error.status != 404:
                raise
            raise missing_queue(self.endpoint, queue) from error
        return int(declared.message_count)

    def _require_version(self, connection: RabbitMQConnection) -> None:
        version = str(connection.server_properties.get("version", ""))
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if self.queue_type == "quorum" and len(numbers) == 2 and numbers < MIN_QUORUM_VERSION:
            raise ConfigurationError(
                f"{self.endpoint.shown} is RabbitMQ {version}; quorum queues that lose nothing need 3.10: upgrade it, "
                "or use queue_type=classic"
            )
