"""The queues behind one queue: itself, its dead letters, and those in which messages wait for their delay.

Quorum queues, unless told otherwise, which hand a message on to another only when that has confirmed it: what waits
and what is dead-lettered by the broker itself is not lost on its way. RabbitMQ 4 moves a message to the dead letters,
and without them drops it, when it was delivered 20 times; ours have a limit that is never reached, since the worker
counts, and dead letters all the same, in case a policy sets a lower one.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from effectonce.errors import ConfigurationError, show

from .connection import Channel, Connection, Endpoint, Refused

QueueType = Literal["quorum", "classic"]

#: A delay is rounded up to one of these times a power of ten, in ms, so that the queues for it are few.
STEPS: Final = (100, 150, 200, 300, 400, 600, 800)
LONGEST_DELAY: Final = 2**32 - 1  # ms: what RabbitMQ takes; seven weeks
OLDEST: Final = (3, 10)
_NEVER: Final = 1_000_000


class MissingQueue(ConfigurationError):
    """There is no queue for a message, or of a name."""


def missing(endpoint: Endpoint, queue: str) -> MissingQueue:
    return MissingQueue(
        f"{endpoint.shown} has no queue {show(queue)}; start its worker, or declare it: "
        f"connect_broker(url).declare({show(queue)!r})"
    )


def dead_name(queue: str) -> str:
    return f"{queue}.dead"


def delay_name(queue: str, milliseconds: int) -> str:
    return f"{queue}.delay.{milliseconds}"


def step(delay: float) -> int:
    """The milliseconds that a message waits which is not to come before ``delay`` seconds."""
    wanted, power = min(delay * 1000, LONGEST_DELAY), 1
    while wanted > STEPS[-1] * power:
        power *= 10
    return min(LONGEST_DELAY, next(first * power for first in STEPS if wanted <= first * power))


class Queues:
    """How the queues of one broker are named and made."""

    def __init__(self, endpoint: Endpoint, kind: QueueType, exchange: str, declares: bool) -> None:
        self.endpoint = endpoint
        self.kind = kind
        self.exchange = exchange
        #: Whether the queue itself is made by us; its dead letters and delays are in any case.
        self.declares = declares

    def _made(self, **arguments: Any) -> dict[str, Any]:
        if self.kind == "classic":
            return arguments  # and nothing else: a queue that others declare plainly is the same queue
        return {"x-queue-type": "quorum", "x-delivery-limit": _NEVER, **arguments}

    def _handing_on(self, to: str) -> dict[str, Any]:
        target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}
        if self.kind == "classic":
            return target
        return {**target, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}

    async def declare(self, channel: Channel, queue: str) -> None:
        """The queue and its dead letters."""
        self._require_version(channel.connection)
        await self.declare_dead(channel, queue)
        handing_on = {} if self.kind == "classic" else self._handing_on(dead_name(queue))
        if self.declares:
            await self._make(channel, queue, self._made(**handing_on))
        else:
            await self.require(channel, queue)
        if self.exchange:
            await channel.call(channel.commands.Queue.Bind(queue=queue, exchange=self.exchange, routing_key=queue))

    async def declare_dead(self, channel: Channel, queue: str) -> None:
        await self._make(channel, dead_name(queue), self._made())

    async def declare_delay(self, channel: Channel, queue: str, milliseconds: int) -> None:
        arguments = self._made(**{"x-message-ttl": milliseconds}, **self._handing_on(queue))
        await self._make(channel, delay_name(queue, milliseconds), arguments)

    async def _make(self, channel: Channel, name: str, arguments: dict[str, Any]) -> None:
        try:
            await channel.call(channel.commands.Queue.Declare(queue=name, durable=True, arguments=arguments))
        except Refused as error:
            if error.status != 406:
                raise
            other = "classic" if self.kind == "quorum" else "quorum"
            raise ConfigurationError(
                f"the queue {show(name)} is there with other settings than effectonce gives it ({error}); use "
                f"queue_type={other} if it is a {other} queue, declare=no to take it as it is, or delete it when it is "
                "empty: it is made again"
            ) from error

    async def require(self, channel: Channel, queue: str) -> int:
        """How many messages wait in it; `ConfigurationError` where there is no such queue."""
        try:
            (found,) = await channel.call(channel.commands.Queue.Declare(queue=queue, passive=True))
        except Refused as error:
            if error.status != 404:
                raise
            raise missing(self.endpoint, queue) from error
        return int(found.message_count)

    def _require_version(self, connection: Connection) -> None:
        version = str(connection.server.get("version", ""))
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if self.kind == "quorum" and len(numbers) == 2 and numbers < OLDEST:
            raise ConfigurationError(
                f"{self.endpoint.shown} is RabbitMQ {version}; quorum queues that lose nothing need 3.10: upgrade it, "
                "or use queue_type=classic"
            )
