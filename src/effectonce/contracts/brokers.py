"""The seam to brokers: publishers, consumers and dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct, field


class Packet(Struct, frozen=True, kw_only=True, gc=False):
    """A message as it travels: a body that no broker reads, and headers.

    The cycle collector tracks neither packets nor deliveries: no field, nor a ``handle``, may lead back to its own.
    """

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The message's id, the same each time it is sent: what the broker deduplicates by, where it does.
    id: str = ""
    #: Packets of one ordering key keep their order where the broker has one (`BrokerCapabilities.ordering`).
    ordering_key: str | None = None
    #: The names of headers that are whole numbers. Brokers with typed headers write these as numbers.
    numbers: frozenset[str] = frozenset()
    #: Fields that the broker's message has beside its headers, by the broker's names for them.
    fields: Mapping[str, str | int] = field(default_factory=dict)
    #: Deliver it no earlier than so many seconds after it was published (`BrokerCapabilities.max_delay_s`). Only a
    #: packet without an ordering key has a delay.
    delay_s: float = 0.0

    def for_broker(self, broker: str) -> Packet:
        """This packet as the broker of that name (`BrokerCapabilities.name`) carries it. Publishers call this.

        An envelope whose specification has a binding of its own to a broker returns packets that override it.
        """
        return self


class Delivery(Struct, kw_only=True, gc=False):
    """One packet that was delivered to one consumer and is not settled yet."""

    packet: Packet
    queue: str
    #: How often the packet was delivered, including this time; 0 where the broker does not count.
    attempt: int = 0
    #: For the adapter alone: a tag, a receipt, a stream id. Never a key.
    handle: Any = None
    #: Where the packet stands in the broker's log, as topic:partition:offset; "" where the broker keeps none. It is a
    #: key only for handlers that ask for it by name (`keys.KAFKA_OFFSET`).
    offset: str = ""


class BrokerCapabilities(Struct, frozen=True, kw_only=True):
    """How a broker differs from the others, as data. The suite and the worker read this."""

    name: str
    #: It was never run against the real broker. Doctor says so.
    experimental: bool = False
    #: ``queue``: packets arrive in the order in which they were published, except redelivered ones. ``key``: packets of
    #: one ordering key arrive in order, redeliveries included: while one of them is unsettled or delayed, those behind
    #: it go to no other consumer, and a nacked one is redelivered before those that were never delivered.
    ordering: Literal["none", "queue", "key"] = "none"
    #: Where a packet of `Publisher.publish` fails, those behind it with its ordering key are not sent.
    ordered_publish: bool = False
    #: How long an unsettled delivery stays with its consumer; None: as long as its connection.
    ack_window_s: float | None = None
    #: `Consumer.extend` moves the end of the ack window.
    extends: bool = False
    #: `Delivery.attempt` is counted by the broker.
    counts_attempts: bool = False
    #: Every group of consumers gets every message. A group's nacks and dead letters concern that group only.
    groups: bool = False
    #: The longest time after publishing at which a message may still be delivered; None: unlimited.
    redelivery_horizon_s: float | None = None
    #: For how long the broker drops a second packet with the same id; None: it does not deduplicate.
    dedup_window_s: float | None = None
    #: The longest `Packet.delay_s`; None: any. 0: what is published cannot be delayed.
    max_delay_s: float | None = 0.0
    #: Why the broker delays nothing, or nothing longer, as the end of a sentence for the caller of `Broker.publish`.
    delay_limit: str = "it has no delayed messages"
    #: `Delivery.offset` is set.
    has_offsets: bool = False
    #: Messages outlive the process.
    durable: bool = True
    #: Several processes share the queues.
    shared: bool = True
    #: The longest body in bytes; None: the broker sets no limit that a user would meet.
    max_body: int | None = None
    #: The most packets in one `publish`, and deliveries in one `receive`.
    batch: int = 100


class Publisher(Protocol):
    """Sends packets. Used by one caller at a time; connects when first used, and again after an error.

    It raises `BrokerUnavailable` for a broker that cannot be reached, and `ConfigurationError` for wrong credentials, a
    queue that may not be created, or one that is missing and that others create. It translates every exception of its
    driver.
    """

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        """Send every packet, and return when the broker has confirmed or refused each (F45: a message counts as sent
        only when it is confirmed, as safely as the broker can).

        Returns the outcomes in the order of the packets: None for a confirmed one, its exception for a refused one
        (F44: a batch may fail in part). Raises where the outcome of every packet is unknown: the caller then sends them
        all again, with the same ids. A packet with the header `message.REDRIVEN_HEADER` is sent again on purpose: the
        broker's own deduplication must not drop it.

        A packet with a delay is confirmed when the broker itself has it: from then on it needs neither this publisher
        nor a consumer, and is delivered as any other as soon as it is due.
        """

    async def close(self) -> None:
        """Close the connections. By default nothing: there are none."""
        return


class Consumer(Protocol):
    """Takes deliveries from one queue, for one group of consumers.

    There is one `receive` at a time. Meanwhile several tasks of the same loop may call the other methods: messages are
    settled, and their windows extended, while the next ones are awaited. At most ``prefetch`` deliveries are unsettled.

    Connects when first used. A lost connection raises `BrokerUnavailable`, once; the next `receive` connects again.
    Where the broker takes back deliveries with their connection, settling them does nothing and returns False (F56: a
    settlement on another connection; F59: the connection is lost while a handler runs).
    """

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        """Return up to ``limit`` deliveries as soon as there is one; [] after ``wait`` seconds without.

        Also takes over deliveries that dead consumers of the group left unsettled for longer than the ack window.
        Cancelling it loses nothing: its deliveries are redelivered.
        """

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        """Settle these for good. Acks may be sent together with the next `receive`; `flush` and `close` send the rest.
        Returns one answer for each: False where the delivery is known to be no longer this consumer's (F54: a stale
        receipt is not a success)."""

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        """Return these to the queue, to be redelivered after ``delay`` seconds, to any consumer. They are never lost in
        between, and the count of their attempts continues. False, and nothing is done, where the delivery is no longer
        this consumer's."""

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """Keep these for ``seconds`` from now, or for one ack window where the broker takes no other time. False where
        the delivery is no longer this consumer's. Does nothing where there is no ack window."""

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        """Move the delivery to the queue's dead letters, with its exact body, its headers and ``headers``. It is
        removed from the queue only after the dead letters have confirmed it. False where it is no longer this
        consumer's."""

    async def flush(self) -> None:
        """Send the acks that are still waiting. By default nothing: acks are sent at once."""
        return

    async def close(self) -> None:
        """Flush, and return unsettled deliveries to the queue, where they are redelivered at once if the broker can do
        that. A broker that cannot be reached is not an error here: it redelivers what was not settled."""


@runtime_checkable
class AckBuffer(Protocol):
    """An optional ability of a `Consumer`: to keep acks, at no cost, until the next `receive` or `flush` sends them."""

    def buffer_acks(self, deliveries: Sequence[Delivery]) -> None:
        """Do what `Consumer.ack` does, without answers: a delivery that is no longer this consumer's is ignored."""


class DeadLetter(Struct, frozen=True, kw_only=True):
    """One message in a queue of dead letters."""

    id: str
    packet: Packet
    queue: str


class DeadLetters(Protocol):
    """The dead letters of one queue."""

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        """A page, oldest first, and the cursor of the next page (None: this is the last). Nothing is removed."""

    async def remove(self, ids: Sequence[str]) -> int:
        """Remove these for good. Returns how many of them existed."""

    async def count(self) -> int: ...

    async def close(self) -> None:
        """Close the connections. By default nothing: there are none."""
        return


class BrokerBackend(Protocol):
    """A kind of broker at one address. Cheap to construct: validates its options, opens nothing. Everything that it
    opens belongs to the running event loop. Its ``repr`` is the address without secrets. A backend that derives from
    this class inherits what the methods below do by default."""

    capabilities: BrokerCapabilities

    def publisher(self) -> Publisher: ...

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Consumer:
        """A new consumer. Consumers of one ``group`` share the queue's messages; every other group gets all of them,
        where the broker has groups (elsewhere the name only labels the consumer)."""

    def dead_letters(self, queue: str, *, group: str) -> DeadLetters: ...

    async def declare(self, queue: str, *, group: str) -> None:
        """Create the queue, its group and its dead letters where they are missing. Safe to run twice."""

    async def check(self, queue: str, *, group: str) -> None:
        """Connect, and verify that the queue can keep its promise. Raises `ConfigurationError` with what to change. By
        default as `declare`, for a queue that has no settings."""
        await self.declare(queue, group=group)

    async def close(self) -> None:
        """Close what publishers and consumers share. By default nothing: each has connections of its own."""
        return


@runtime_checkable
class FlushesLater(Protocol):
    """A broker that may confirm a message before it is on disk. A power cut, unlike a crash, may then lose it."""

    async def sync_interval(self) -> float | None:
        """Ask the server for how many seconds a confirmed message may not be on disk. 0.0: it is, always. None: the
        server does not tell."""
