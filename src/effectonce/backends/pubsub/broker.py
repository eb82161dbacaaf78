"""Google Cloud Pub/Sub: a topic for each queue, and a subscription for each group of consumers.

A delivery is ours until its ack deadline, which is the ack window. A subscription without exactly-once delivery
confirms a stale ack, and does nothing; see `visibility_timeout`.

The dead letters of a group have a topic and a subscription of their own, ``{queue}.{group}.dead``. A message is sent
there, confirmed, and only then acked. The subscription's own dead-letter policy names the same topic: only with one
does Pub/Sub count deliveries, and after a hundred it moves a message there by itself.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from effectonce.backends.common.listing_by_receiving import LISTING_TIMEOUT_S
from effectonce.backends.common.packets import hold_back_behind_failed, raise_if_all_unavailable, split_into_chunks
from effectonce.backends.common.visibility_timeout import HeldDelivery, PollingConsumer, give_back_unsettled
from effectonce.contracts import BrokerCapabilities, Delivery, Packet, Publisher
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, show
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, flag

from .client import MissingPubSubResource, PubSubClient, PubSubRefusal, parse_target
from .dead_letters import MAX_PULL, PubSubDeadLetters
from .messages import make_message, read_message

DAY_S: Final = 86400.0
RETENTION_S: Final = 7 * DAY_S
MIN_RETENTION_S: Final = 600.0
MAX_RETENTION_S: Final = 31 * DAY_S
#: The bounds of a subscription's ack deadline. A single delivery's deadline may be shorter: it may end at once.
MIN_ACK_DEADLINE_S: Final = 10
MAX_ACK_DEADLINE_S: Final = 600
#: After so many deliveries Pub/Sub itself moves a message to the dead letters. It takes no larger number.
MAX_DELIVERY_ATTEMPTS: Final = 100
#: The most in one publish: messages, and their bytes together.
MAX_PUBLISH_MESSAGES: Final = 1000
MAX_PUBLISH_BYTES: Final = 10_000_000
#: How much of a message's size is reserved for its attributes where the longest body is computed.
ATTRIBUTE_RESERVE_BYTES: Final = 128 * 1024
#: A pull takes up to so long even where its caller wants to wait for less: the service itself answers no faster.
MIN_PULL_S: Final = 1.0
MAX_PULL_S: Final = 20.0

_NAME: Final = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9_.-]{2,254}")


class PubSubBackend:
    """``pubsub://my-project``; Google's client finds the credentials.

    Options: ``ordering`` (no; yes: messages of one ordering key are delivered in order), ``exactly_once`` (no; yes: the
    service tells when an ack came too late), ``ack_window`` (30s: the ack deadline, 10s to 10m, in whole seconds),
    ``retention`` (7d: how long a message waits for its consumers, up to 31d), ``endpoint`` (a region's, or an
    emulator's: ``http://127.0.0.1:8085``; else the variable PUBSUB_EMULATOR_HOST), ``credentials_file``, ``timeout``
    (10s). Those for TLS: ``ca_file``, ``cert_file``, ``key_file``, ``server_name``; ``tls`` is as the endpoint
    says, and ``verify`` is always yes.

    ``ordering`` and ``exactly_once`` are settings of a subscription: `declare` creates it with them, and `check`
    refuses one that has others.
    """

    def __init__(self, address: Address) -> None:
        self._target = parse_target(address)
        self._clients: dict[asyncio.AbstractEventLoop, PubSubClient] = {}
        self._is_ordered = address.take("ordering", flag, False)
        self._is_exactly_once = address.take("exactly_once", flag, False)
        self._window_s = math.ceil(address.seconds("ack_window", 30.0))
        self._retention_s = address.seconds("retention", RETENTION_S)
        address.refuse_unknown_options()
        if not MIN_ACK_DEADLINE_S <= self._window_s <= MAX_ACK_DEADLINE_S:
            raise InvalidOption("ack_window of pubsub:// is between 10s and 10m")
        if not MIN_RETENTION_S <= self._retention_s <= MAX_RETENTION_S:
            raise InvalidOption("retention of pubsub:// is between 10m and 31d")
        self.capabilities = BrokerCapabilities(
            name="pubsub",
            experimental=True,
            ordering="key" if self._is_ordered else "none",
            ordered_publish=self._is_ordered,
            ack_window_s=float(self._window_s),
            extends=True,
            counts_attempts=True,
            groups=True,
            redelivery_horizon_s=self._retention_s,
            max_body=MAX_PUBLISH_BYTES - ATTRIBUTE_RESERVE_BYTES,
        )

    def publisher(self) -> PubSubPublisher:
        return PubSubPublisher(self)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> PubSubConsumer:
        return PubSubConsumer(self, queue, group, prefetch, self._window_s)

    def dead_letters(self, queue: str, *, group: str) -> PubSubDeadLetters:
        return PubSubDeadLetters(self.client(), queue, self.dead_letter_subscription(queue, group))

    async def declare(self, queue: str, *, group: str) -> None:
        topic, dead_topic = self.topic(queue), self.dead_letter_topic(queue, group)
        await self._create("topic", {"name": topic})
        await self._create("topic", {"name": dead_topic})
        retained = {
            "message_retention_duration": {"seconds": math.ceil(self._retention_s)},
            "expiration_policy": {},  # never: by default it is deleted after 31 days without a consumer
        }
        dead_letters = {
            "name": self.dead_letter_subscription(queue, group),
            "topic": dead_topic,
            "ack_deadline_seconds": LISTING_TIMEOUT_S,
        }
        await self._create("subscription", dead_letters | retained)
        subscription = {
            "name": self.subscription(queue, group),
            "topic": topic,
            "ack_deadline_seconds": self._window_s,
            "enable_message_ordering": self._is_ordered,
            "enable_exactly_once_delivery": self._is_exactly_once,
            "dead_letter_policy": {"dead_letter_topic": dead_topic, "max_delivery_attempts": MAX_DELIVERY_ATTEMPTS},
        }
        await self._create("subscription", subscription | retained)

    async def _create(self, kind: str, fields: dict[str, Any]) -> None:
        """Create the topic or subscription; where it exists, take it as it is."""
        existing = {kind: fields["name"]}
        try:
            await self.client().call(f"get_{kind}", existing)
        except MissingPubSubResource:
            try:
                await self.client().call(f"create_{kind}", fields)
            except PubSubRefusal as refusal:
                try:
                    await self.client().call(f"get_{kind}", existing)  # another process was faster
                except MissingPubSubResource:
                    raise refusal from None

    async def check(self, queue: str, *, group: str) -> None:
        dead_letters = await self._get_subscription(self.dead_letter_subscription(queue, group))
        dead_topic = self.dead_letter_topic(queue, group)
        if dead_letters.topic != dead_topic:
            raise ConfigurationError(
                f"subscription {dead_letters.name} has the messages of {show(dead_letters.topic, 200)}, and not of "
                f"{dead_topic}; delete it, and declare the queue again"
            )
        subscription = await self._get_subscription(self.subscription(queue, group))
        for fault, remedy in self._faults(subscription, self.topic(queue), dead_topic):
            raise ConfigurationError(f"subscription {subscription.name} {fault}: {remedy}")

    async def _get_subscription(self, name: str) -> Any:
        return await self.client().call("get_subscription", {"subscription": name})

    def _faults(self, found: Any, topic: str, dead_topic: str) -> Sequence[tuple[str, str]]:
        """What of the subscription keeps our promise from being kept, and what to do about it."""
        policy = found.dead_letter_policy
        update = f"run gcloud pubsub subscriptions update {found.name}"
        recreate = "delete it when it is empty, and declare the queue again"
        pushes = bool(found.push_config.push_endpoint) or bool(found.bigquery_config.table)
        rules = (
            (found.topic != topic, f"has the messages of {show(found.topic, 200)}", recreate),
            (pushes, "pushes its messages, and they cannot be pulled", f"{update} --clear-push-config"),
            (bool(found.filter), f"has a filter ({show(found.filter)}) that drops messages", recreate),
            (
                found.enable_message_ordering != self._is_ordered,
                f"has ordering={'yes' if found.enable_message_ordering else 'no'}, and the URL has the other",
                f"set ordering in the URL as it is there, or {recreate}",
            ),
            (
                found.enable_exactly_once_delivery != self._is_exactly_once,
                f"has exactly_once={'yes' if found.enable_exactly_once_delivery else 'no'}, and the URL has the other",
                "set exactly_once in the URL as it is there",
            ),
            (
                found.ack_deadline_seconds < self._window_s,
                f"has an ack deadline of {found.ack_deadline_seconds} s, shorter than ack_window",
                f"{update} --ack-deadline={self._window_s}, or set ack_window={found.ack_deadline_seconds}s in the URL",
            ),
            (
                policy.dead_letter_topic != dead_topic,
                "has no dead-letter policy with our topic, and without one Pub/Sub counts no deliveries",
                f"{update} --dead-letter-topic={dead_topic} --max-delivery-attempts={MAX_DELIVERY_ATTEMPTS}",
            ),
            (
                policy.max_delivery_attempts < MAX_DELIVERY_ATTEMPTS,
                f"lets Pub/Sub give up messages after {policy.max_delivery_attempts} deliveries, without a reason",
                f"{update} --max-delivery-attempts={MAX_DELIVERY_ATTEMPTS}",
            ),
        )
        return [(fault, remedy) for is_broken, fault, remedy in rules if is_broken]

    async def close(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def client(self) -> PubSubClient:
        """The one client of this event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients = {other: client for other, client in self._clients.items() if not other.is_closed()}
            self._clients[loop] = PubSubClient(self._target)
        return self._clients[loop]

    def topic(self, queue: str) -> str:
        return self._target.topic(_require_id(require_name(queue)))

    def subscription(self, queue: str, group: str) -> str:
        return self._target.subscription(_require_id(f"{require_name(queue)}.{require_name(group, 'group')}"))

    def dead_letter_topic(self, queue: str, group: str) -> str:
        return self._target.topic(_require_id(f"{queue}.{group}.dead"))

    def dead_letter_subscription(self, queue: str, group: str) -> str:
        return self._target.subscription(_require_id(f"{queue}.{group}.dead"))

    def __repr__(self) -> str:
        return str(self._target)


def _require_id(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise InvalidOption(
            f"{show(text)!r} cannot be the id of a topic or subscription on Pub/Sub; begin the queue's name with a "
            "letter, and use letters, digits, _ . and - (up to 255 with the group)"
        )
    return text


class PubSubPublisher(Publisher):
    """See `contracts.Publisher`."""

    def __init__(self, backend: PubSubBackend) -> None:
        self._backend = backend

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        return await publish_to(self._backend.client(), self._backend.topic(queue), packets)


async def publish_to(client: PubSubClient, topic: str, packets: Sequence[Packet]) -> list[Exception | None]:
    """Do what `Publisher.publish` does, for a topic."""
    outcomes: list[Exception | None] = [None] * len(packets)
    messages: list[Any] = [None] * len(packets)
    sizes = [0] * len(packets)
    for index, packet in enumerate(packets):
        try:
            messages[index] = make_message(packet)
            sizes[index] = _request_size(messages[index])
        except ConfigurationError as error:
            outcomes[index] = error
        if sizes[index] > MAX_PUBLISH_BYTES:
            outcomes[index] = PubSubRefusal(
                f"the message has {sizes[index]} bytes with its attributes, and Pub/Sub takes {MAX_PUBLISH_BYTES}"
            )
    keys = [packet.ordering_key for packet in packets]

    async def send(chunk: Sequence[int]) -> None:
        hold_back_behind_failed(chunk, keys, outcomes)
        unsent = [index for index in chunk if outcomes[index] is None]
        if not unsent:
            return
        try:
            await _publish_chunk(client, topic, [messages[index] for index in unsent])
        except PubSubRefusal as refusal:
            if len(unsent) == 1:
                outcomes[unsent[0]] = refusal
                return
            for index in unsent:  # it refuses the whole call for one message
                await send([index])
        except BrokerUnavailable as error:
            for index in unsent:
                outcomes[index] = error

    fitting = [index for index, outcome in enumerate(outcomes) if outcome is None]
    for chunk in split_into_chunks(fitting, sizes, MAX_PUBLISH_MESSAGES, MAX_PUBLISH_BYTES):
        await send(chunk)
    raise_if_all_unavailable(outcomes)
    return outcomes


def _request_size(message: Any) -> int:
    """How many bytes the message takes in a request: its own, and those that say how many they are."""
    size: int = message.ByteSize()
    return size + 8


async def _publish_chunk(client: PubSubClient, topic: str, messages: Sequence[Any]) -> None:
    from google.pubsub_v1.types import PublishRequest

    await client.call("publish", PublishRequest.wrap(PublishRequest.pb()(topic=topic, messages=messages)))


class PubSubConsumer(PollingConsumer[HeldDelivery]):
    """See `contracts.Consumer`. The key of a `HeldDelivery` is its ack id."""

    def __init__(self, backend: PubSubBackend, queue: str, group: str, prefetch: int, window: int) -> None:
        super().__init__(prefetch, window, MAX_PULL_S)
        self._client = backend.client()
        self._queue = queue
        self._subscription = backend.subscription(queue, group)
        self._dead_letter_topic = backend.dead_letter_topic(queue, group)

    async def _poll_once(self, limit: int, wait: float) -> Sequence[Delivery]:
        started_at = time.monotonic()
        messages = await self._client.pull(self._subscription, min(limit, MAX_PULL), max(wait, MIN_PULL_S))
        return [
            Delivery(
                packet=read_message(received.message),
                queue=self._queue,
                attempt=received.delivery_attempt,
                handle=HeldDelivery(received.ack_id, started_at + self._window_s),
            )
            for received in messages
        ]

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return await self._settle(deliveries, "acknowledge")

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        """A delay is in whole seconds, rounded up, and ends after 10 minutes at the latest."""
        seconds = min(math.ceil(delay), MAX_ACK_DEADLINE_S)
        return await self._settle(deliveries, "modify_ack_deadline", ack_deadline_seconds=seconds)

    async def _settle(self, deliveries: Sequence[Delivery], method: str, **parameters: int) -> list[bool]:
        async def send(held: list[HeldDelivery]) -> Sequence[bool]:
            owned = [delivery for delivery in held if time.monotonic() < delivery.ends_at]
            return await self._apply(method, held, owned, parameters)

        return await self._unsettled.settle(deliveries, send)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        started_at, window = time.monotonic(), min(math.ceil(seconds), MAX_ACK_DEADLINE_S)

        async def send(held: list[HeldDelivery]) -> Sequence[bool]:
            owned = [delivery for delivery in held if self._unsettled.owns(delivery)]
            return await self._apply("modify_ack_deadline", held, owned, {"ack_deadline_seconds": window})

        answers = await self._unsettled.extend(deliveries, send)
        for delivery, is_ours in zip(deliveries, answers, strict=True):
            if is_ours:
                delivery.handle.ends_at = started_at + window
        return answers

    async def _apply(
        self, method: str, held: list[HeldDelivery], owned: list[HeldDelivery], parameters: Mapping[str, int]
    ) -> list[bool]:
        """Apply ``method`` to ``owned``, those of ``held`` whose deadline is not over. Returns, for ``held``, which the
        service has accepted before their deadline was over."""
        ack_ids = [delivery.key for delivery in owned]
        accepted = await self._client.settle(method, self._subscription, ack_ids, **parameters)
        now = time.monotonic()
        applied = {
            delivery.key
            for delivery, is_ours in zip(owned, accepted, strict=True)
            if is_ours and now < delivery.ends_at
        }
        return [delivery.key in applied for delivery in held]

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        if not self._unsettled.owns(delivery.handle):
            return False
        packet = replace(delivery.packet, headers={**delivery.packet.headers, **headers})
        (error,) = await publish_to(self._client, self._dead_letter_topic, [packet])
        if error is not None:
            raise error
        return all(await self.ack([delivery]))

    async def close(self) -> None:
        """Return unsettled deliveries at once. Where that fails, they are redelivered when their deadline is over."""
        ack_ids = [held.key for held in await self._stop_polling()]
        await give_back_unsettled(
            lambda: self._client.settle("modify_ack_deadline", self._subscription, ack_ids, ack_deadline_seconds=0)
        )
