"""Amazon SQS: standard queues, and FIFO queues with their own deduplication.

A delivery is ours for its visibility timeout, which is the ack window. A standard queue answers "deleted" to a stale
receipt, and deletes nothing; see `visibility_timeout`.

Dead letters have a standard queue of their own, ``{queue}-dead``. A message is sent there, confirmed, and only then
deleted from its queue. SQS keeps dead letters, like every message, for 14 days at most.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from effectonce.backends.common.packets import hold_back_behind_failed, raise_if_all_unavailable, split_into_chunks
from effectonce.backends.common.visibility_timeout import HeldDelivery, PollingConsumer
from effectonce.contracts import BrokerCapabilities, Delivery, Packet, Publisher
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, show
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, flag

from .client import MAX_BATCH_ENTRIES, MAX_POLL_S, MissingSQSQueue, SQSClient, SQSRefusal, parse_account
from .dead_letters import SQSDeadLetters
from .messages import make_entry, message_size, read_packet

RETENTION_S: Final = 14 * 86400
DEDUP_WINDOW_S: Final = 300.0
MAX_DELAY_S: Final = 900.0
#: The longest that a message may be invisible, counted from when it was received.
MAX_VISIBILITY_TIMEOUT_S: Final = 43200
BYTES_PER_KIB: Final = 1024
#: How much of a message's size is reserved for headers, id and key where the longest body is computed.
HEADER_RESERVE_BYTES: Final = 16 * BYTES_PER_KIB

_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,70}")


class SQSBackend:
    """``sqs://?region=eu-west-1``; credentials come from the AWS SDK's own chain.

    Options: ``fifo`` (no; yes: all queues of this broker are FIFO queues, ``orders`` is ``orders.fifo``),
    ``ack_window`` (30s: the visibility timeout, in whole seconds), ``max_message`` (262144 bytes: SQS takes up to
    1048576 where the queue is set so), ``region``, ``endpoint``, ``profile``, ``timeout`` (10s). Those for TLS, with an
    endpoint of your own: ``ca_file``, ``cert_file``, ``key_file``, ``verify`` (yes, or no); ``tls`` is as the endpoint
    says, and there is no ``server_name``.
    """

    def __init__(self, address: Address) -> None:
        self._account = parse_account(address)
        self._clients: dict[asyncio.AbstractEventLoop, SQSClient] = {}
        self._fifo = address.take("fifo", flag, False)
        self._window_s = math.ceil(address.seconds("ack_window", 30.0))
        self._max_message = address.take("max_message", int, 256 * BYTES_PER_KIB)
        address.refuse_unknown_options()
        if not 0 < self._window_s <= MAX_VISIBILITY_TIMEOUT_S:
            raise InvalidOption("ack_window of sqs:// is at most 12h")
        if not BYTES_PER_KIB <= self._max_message <= BYTES_PER_KIB * BYTES_PER_KIB:
            raise InvalidOption("max_message of sqs:// is between 1024 and 1048576")
        self.capabilities = BrokerCapabilities(
            name="sqs",
            ordering="key" if self._fifo else "none",
            ack_window_s=float(self._window_s),
            extends=True,
            counts_attempts=True,
            redelivery_horizon_s=float(RETENTION_S),
            dedup_window_s=DEDUP_WINDOW_S if self._fifo else None,
            max_delay_s=0.0 if self._fifo else MAX_DELAY_S,
            delay_limit="a FIFO queue delays all of its messages, or none" if self._fifo else "SQS takes no more",
            max_body=max(self._max_message - HEADER_RESERVE_BYTES, BYTES_PER_KIB // 2) * 3 // 4,  # in base64
        )

    def publisher(self) -> SQSPublisher:
        return SQSPublisher(self._client(), self._queue_name, self._max_message, self._fifo)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> SQSConsumer:
        name, dead = self._queue_name(queue), self._dead_letter_queue_name(queue)
        return SQSConsumer(self._client(), queue, name, dead, prefetch, self._window_s)

    def dead_letters(self, queue: str, *, group: str) -> SQSDeadLetters:
        return SQSDeadLetters(self._client(), queue, self._dead_letter_queue_name(queue))

    async def declare(self, queue: str, *, group: str) -> None:
        attributes = {"MessageRetentionPeriod": str(RETENTION_S)}
        fifo = {"FifoQueue": "true"} if self._fifo else {}
        await _create_queue(self._client(), self._queue_name(queue), attributes | fifo)
        await _create_queue(self._client(), self._dead_letter_queue_name(queue), attributes)

    async def check(self, queue: str, *, group: str) -> None:
        name, dead = self._queue_name(queue), self._dead_letter_queue_name(queue)
        reply = await self._client().call("get_queue_attributes", name, AttributeNames=["All"])
        await self._client().call("get_queue_attributes", dead, AttributeNames=["QueueArn"])
        attributes = reply.get("Attributes", {})
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        target = str(policy.get("deadLetterTargetArn", "")).rpartition(":")[2]
        if target not in ("", dead):
            raise ConfigurationError(
                f"SQS itself would move messages from {name} to {show(target)} after {policy.get('maxReceiveCount')} "
                f"receives, without recording why; remove the queue's redrive policy, or let it name {dead}"
            )
        largest = int(attributes.get("MaximumMessageSize", self._max_message))
        if largest < self._max_message:
            raise ConfigurationError(
                f"queue {name} takes messages of up to {largest} bytes; raise its MaximumMessageSize, or add "
                f"&max_message={largest} to the URL"
            )

    async def close(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _client(self) -> SQSClient:
        """The one client of this event loop. It is shared, since opening one takes longer than a call."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients = {other: client for other, client in self._clients.items() if not other.is_closed()}
            self._clients[loop] = SQSClient(self._account)
        return self._clients[loop]

    def _queue_name(self, queue: str) -> str:
        base = require_name(queue).removesuffix(".fifo")
        if base != queue and not self._fifo:
            raise InvalidOption(f"{queue} is the name of a FIFO queue: add fifo=yes to the URL, {self!r}")
        if _QUEUE_NAME.fullmatch(base) is None:
            raise InvalidOption(f"{queue!r} cannot be a queue on SQS; use up to 70 letters, digits, _ and -")
        return f"{base}.fifo" if self._fifo else base

    def _dead_letter_queue_name(self, queue: str) -> str:
        return f"{self._queue_name(queue).removesuffix('.fifo')}-dead"

    def __repr__(self) -> str:
        return str(self._account)


async def _create_queue(client: SQSClient, name: str, attributes: Mapping[str, str]) -> None:
    """Create the queue; where it exists, take it as it is."""
    try:
        await client.call("get_queue_attributes", name, AttributeNames=["QueueArn"])
    except MissingSQSQueue:
        try:
            await client.call("create_queue", QueueName=name, Attributes=attributes)
        except SQSRefusal:  # another process was faster, with other attributes
            await client.call("get_queue_attributes", name, AttributeNames=["QueueArn"])


class SQSPublisher(Publisher):
    """See `contracts.Publisher`."""

    def __init__(self, client: SQSClient, queue_name: Callable[[str], str], max_message: int, fifo: bool) -> None:
        self._client = client
        self._queue_name = queue_name
        self._max_message = max_message
        self._fifo = fifo

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        name = self._queue_name(queue)
        entries = [make_entry(packet, fifo=self._fifo) for packet in packets]
        sizes = list(map(message_size, entries))
        outcomes: list[Exception | None] = [self._refuse_too_large(size) for size in sizes]

        async def send(chunk: Sequence[int]) -> None:
            sent = await self._client.send_chunk("send_message_batch", name, [entries[index] for index in chunk])
            for index, outcome in zip(chunk, sent, strict=True):
                outcomes[index] = outcome

        fitting = [index for index, outcome in enumerate(outcomes) if outcome is None]
        chunks = split_into_chunks(fitting, sizes, MAX_BATCH_ENTRIES, self._max_message)
        if self._fifo:
            groups = [entry["MessageGroupId"] for entry in entries]
            for chunk in chunks:
                hold_back_behind_failed(chunk, groups, outcomes)
                if unsent := [index for index in chunk if outcomes[index] is None]:
                    await send(unsent)
        else:
            await asyncio.gather(*map(send, chunks))
        raise_if_all_unavailable(outcomes)
        return outcomes

    def _refuse_too_large(self, size: int) -> Exception | None:
        if size <= self._max_message:
            return None
        return SQSRefusal(
            f"the message has {size} bytes with its headers, and the limit is {self._max_message}; send less, or raise "
            "max_message in the URL and MaximumMessageSize of the queue"
        )


class SQSDelivery(HeldDelivery):
    """A `HeldDelivery` whose key is the receipt handle."""

    received_at: float  # on the monotonic clock, before the call that received it


class SQSConsumer(PollingConsumer[SQSDelivery]):
    """See `contracts.Consumer`. All consumers of a queue share it, whatever their group."""

    def __init__(
        self, client: SQSClient, queue: str, name: str, dead_letter_name: str, prefetch: int, window: int
    ) -> None:
        super().__init__(prefetch, window, MAX_POLL_S)
        self._client = client
        self._queue = queue
        self._name = name
        self._dead_letter_name = dead_letter_name

    async def _poll_once(self, limit: int, wait: float) -> Sequence[Delivery]:
        deliveries = await self._receive_chunk(limit, round(wait))
        if len(deliveries) == MAX_BATCH_ENTRIES < limit:
            more = (self._receive_chunk(MAX_BATCH_ENTRIES, 0) for _ in range(limit // MAX_BATCH_ENTRIES - 1))
            for chunk in await asyncio.gather(*more, return_exceptions=True):
                deliveries += chunk if isinstance(chunk, list) else []  # where a call failed, the next poll will, too
        return deliveries

    async def _receive_chunk(self, limit: int, wait: int) -> list[Delivery]:
        started_at, window = time.monotonic(), math.ceil(self._window_s)
        return [
            Delivery(
                packet=read_packet(message),
                queue=self._queue,
                attempt=int(message.get("Attributes", {}).get("ApproximateReceiveCount", 0)),
                handle=SQSDelivery(message["ReceiptHandle"], started_at + self._window_s, started_at),
            )
            for message in await self._client.receive(self._name, limit, wait=wait, visibility_timeout=window)
        ]

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return await self._settle("delete_message_batch", deliveries, lambda held: {})

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        """A delay is in whole seconds, rounded up, and ends 12 hours after the delivery at the latest."""

        def hide(held: SQSDelivery) -> dict[str, Any]:
            longest = MAX_VISIBILITY_TIMEOUT_S - math.ceil(time.monotonic() - held.received_at)
            return {"VisibilityTimeout": max(min(math.ceil(delay), longest), 0)}

        return await self._settle("change_message_visibility_batch", deliveries, hide)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """One whose extension SQS has not confirmed stays this consumer's until its timeout ends."""
        started_at, window = time.monotonic(), math.ceil(seconds)
        owned, outcomes = await self._send(
            "change_message_visibility_batch", deliveries, lambda held: {"VisibilityTimeout": window}
        )
        for held, error in zip(owned, outcomes, strict=True):
            if not self._unsettled.owns(held) or (error is not None and not isinstance(error, BrokerUnavailable)):
                self._unsettled.release(held)
            elif error is None:
                held.ends_at = started_at + window
        return [self._unsettled.owns(delivery.handle) for delivery in deliveries]

    async def _settle(
        self, operation: str, deliveries: Sequence[Delivery], parameters: Callable[[SQSDelivery], dict[str, Any]]
    ) -> list[bool]:
        """Settle every delivery that this consumer still owns. Returns for which it is known to have worked."""
        owned, outcomes = await self._send(operation, deliveries, parameters)
        # Where the timeout has ended before the answer came, the operation may have hit another consumer's delivery.
        settled = {
            held for held, error in zip(owned, outcomes, strict=True) if error is None and self._unsettled.owns(held)
        }
        for held in owned:
            self._unsettled.release(held)
        return [delivery.handle in settled for delivery in deliveries]

    async def _send(
        self, operation: str, deliveries: Sequence[Delivery], parameters: Callable[[SQSDelivery], dict[str, Any]]
    ) -> tuple[list[SQSDelivery], list[Exception | None]]:
        """Send ``operation`` for every delivery that this consumer still owns. Returns these, and their outcomes."""
        owned = [delivery.handle for delivery in deliveries if self._unsettled.owns(delivery.handle)]
        entries = [{"ReceiptHandle": held.key, **parameters(held)} for held in owned]
        outcomes = await self._client.send_entries(operation, self._name, entries)
        raise_if_all_unavailable(outcomes)
        return owned, outcomes

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        if not self._unsettled.owns(delivery.handle):
            return False
        packet = replace(delivery.packet, headers={**delivery.packet.headers, **headers})
        (error,) = await self._client.send_chunk("send_message_batch", self._dead_letter_name, [make_entry(packet)])
        if error is not None:
            raise error
        return all(await self.ack([delivery]))

    async def close(self) -> None:
        """Make unsettled messages visible at once. Where that fails, they are redelivered when their timeout ends."""
        entries = [{"ReceiptHandle": held.key, "VisibilityTimeout": 0} for held in await self._stop_polling()]
        await self._client.send_entries("change_message_visibility_batch", self._name, entries)
