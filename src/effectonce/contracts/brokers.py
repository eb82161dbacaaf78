"""The seam to brokers: publishers, consumers and dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct, field


class Packet(Struct, frozen=True, kw_only=True):
    """A message as it travels: bytes that no broker looks into, and headers."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The message's id, the same however often it is sent: given to the broker's own deduplication, where it has one.
    id: str = ""
    #: Packets of one ordering key keep their order where the broker has one (`BrokerCapabilities.ordering`).
    ordering_key: str | None = None
    #: Which headers are whole numbers. Brokers whose headers have types write these as numbers.
    numbers: frozenset[str] = frozenset()
    #: What the broker's own message has in fields beside its headers, by the broker's names for them.
    fields: Mapping[str, str | int] = field(default_factory=dict)

    def for_broker(self, broker: str) -> Packet:
        """This packet as the broker of that name (`BrokerCapabilities.name`) carries it. Publishers ask for it.

        An envelope whose specification has a binding of its own to a broker returns packets that override this.
        """
        return self


class Delivery(Struct, kw_only=True):
    """One packet, delivered to one consumer, and not yet settled."""

    packet: Packet
    queue: str
    #: How often it has been delivered, this time included; 0 where the broker does not count.
    attempt: int = 0
    #: The adapter's own: tag, receipt, stream id. Never a key.
    handle: Any = None


class BrokerCapabilities(Struct, frozen=True, kw_only=True):
    """How a broker differs from the others, as data. Times are in seconds. The suite and the worker read this."""

    name: str
    #: `Consumer.nack` with a delay is kept by the broker itself; elsewhere the adapter builds it from queues.
    native_delay: bool = False
    native_dead_letters: bool = False
    #: What keeps its order. ``queue``: what was never delivered before comes as it was published. ``key``: also, what
    #: has one ordering key is delivered in order, redeliveries included: while one of it is unsettled or delayed,
    #: those behind it come to no other consumer, and a nacked one comes again before those that were not delivered.
    ordering: Literal["none", "queue", "key"] = "none"
    #: A failed packet of `Publisher.publish` stops those behind it that have its ordering key.
    ordered_publish: bool = False
    #: How long an unsettled delivery stays with its consumer; None: as long as its connection.
    ack_window: float | None = None
    #: `Consumer.extend` moves the end of the ack window.
    extends: bool = False
    counts_attempts: bool = False
    #: Another group of consumers sees every message too. What a group does (nack, dead letters) concerns itself only.
    groups: bool = False
    #: The longest time after which an unsettled message may still be delivered; None: without end.
    redelivery_horizon: float | None = None
    #: How long the broker itself drops a second packet with the same id; None: it does not.
    dedup_window: float | None = None
    durable: bool = True
    shared: bool = True
    max_body: int | None = None
    #: The most packets in one `publish`, and deliveries in one `receive`.
    batch: int = 100


class Publisher(Protocol):
    """Sends packets. One caller at a time; connects when first used, and again after an error.

    A broker that cannot be reached is `BrokerUnavailable`; wrong credentials, or a queue that may not be made, are
    `ConfigurationError`. Driver exceptions never get out untranslated.
    """

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        """Send every packet; return when the broker has confirmed each as safely as it can (F45).

        None for a packet that was confirmed, its own exception for one that was refused (F44). Raising means that
        nobody knows about any of them: they are sent again, with the same ids. What has the header `message.REDRIVEN`
        was seen before, and is sent again on purpose: the broker's own deduplication must not drop it.
        """
        ...

    async def close(self) -> None: ...


class Consumer(Protocol):
    """Takes deliveries from one queue, for one group of consumers.

    One `receive` at a time; meanwhile the others may be called, by several tasks of the same loop: a message is
    settled, and its window extended, while the next are waited for. At most ``prefetch`` deliveries are unsettled.

    Connects when first used. A lost connection is `BrokerUnavailable`, once; the next `receive` connects again. Where
    the broker then takes back what it had delivered, settling that does nothing and says False (F56, F59).
    """

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        """Up to ``limit`` deliveries, as soon as there is one; [] after ``wait`` seconds without.

        Also takes over what dead consumers of the group left unsettled for longer than the ack window. Cancelling it
        loses nothing: what it would have returned is delivered again.
        """
        ...

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        """Done with these. May be sent together with the next `receive`; `flush` and `close` send what is left. False
        where the delivery is known to be no longer this consumer's (F54)."""
        ...

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        """Deliver these again, to anyone, not before ``delay`` seconds; never lost in between, attempts counted on.
        False, and nothing is done, where the delivery is no longer this consumer's."""
        ...

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """Keep these for ``seconds`` from now, or for one ack window where the broker knows no other time. False where
        it is too late. Nothing to do where there is no window."""
        ...

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        """Move it to the queue's dead letters, with its exact body and its headers, ``headers`` added. It is removed
        from the queue only after the dead letters have confirmed it. False where it is no longer this consumer's."""
        ...

    async def flush(self) -> None:
        """Send the acks that are still waiting."""
        ...

    async def close(self) -> None:
        """Flush, and give back what is unsettled: it is delivered again, at once where the broker can. A broker that
        cannot be reached is no error here: it delivers again what it has heard nothing of."""
        ...


@runtime_checkable
class AckBuffer(Protocol):
    """An optional power of a `Consumer`: acks that wait, at no cost, until the next `receive` or `flush` sends them."""

    def buffer_acks(self, deliveries: Sequence[Delivery]) -> None:
        """As `Consumer.ack`; what is no longer this consumer's is left out."""
        ...


class DeadLetter(Struct, frozen=True, kw_only=True):
    """One message that was given up, as its queue of dead letters holds it."""

    id: str
    packet: Packet
    queue: str


class DeadLetters(Protocol):
    """What was given up on one queue."""

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        """A page, oldest first, and the cursor of the next (None: the end). Nothing is removed."""
        ...

    async def remove(self, ids: Sequence[str]) -> int:
        """Remove these for good; how many were there."""
        ...

    async def count(self) -> int: ...

    async def close(self) -> None: ...


class BrokerBackend(Protocol):
    """A kind of broker at one address. Cheap to construct: validates its options, opens nothing. All that it opens
    belongs to the running event loop. Its ``repr`` is the address without secrets."""

    capabilities: BrokerCapabilities

    def publisher(self) -> Publisher: ...

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Consumer:
        """Consumers of one ``group`` share the queue's messages; another group sees all of them, where the broker has
        groups (elsewhere the name is only for people)."""
        ...

    def dead_letters(self, queue: str, *, group: str) -> DeadLetters: ...

    async def declare(self, queue: str, *, group: str) -> None:
        """Create the queue, its group and its dead letters where they are missing; safe to run twice."""
        ...

    async def check(self, queue: str, *, group: str) -> None:
        """Connect and verify that the queue can keep its promise; `ConfigurationError` says what to change."""
        ...

    async def close(self) -> None: ...
