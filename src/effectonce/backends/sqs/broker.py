"""Amazon SQS: standard queues, and FIFO queues with their own deduplication.

A delivery is ours for its visibility timeout, which is the ack window. A standard queue answers "deleted" to a stale
receipt, and deletes nothing; see `windowed`.

Dead letters are a standard queue of their own, ``{queue}-dead``: sent there, confirmed, then deleted. SQS keeps them,
like everything, for 14 days at most: look at them before.
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

from effectonce.backends.common.visibility_timeout import Hold, WindowedConsumer
from effectonce.contracts import BrokerCapabilities, Delivery, Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, show
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, flag

from .client import CHUNK, LONGEST_POLL, Client, MissingQueue, Refused, parse
from .dead_letters import SQSDeadLetters
from .messages import SYSTEM, entry_of, packet_of, size_of

RETENTION: Final = 14 * 86400
DEDUP_WINDOW: Final = 300.0
#: The longest that a message may be invisible, counted from when it was received.
LONGEST_WINDOW: Final = 43200
KIB: Final = 1024
#: What headers, id and key may take of a message's size, when the longest body is reckoned.
HEADERS: Final = 16 * KIB

_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,70}")


class SQSBackend:
    """``sqs://?region=eu-west-1``; credentials come from the AWS SDK's own chain.

    Options: ``fifo`` (no; yes: all queues of this broker are FIFO queues, ``orders`` is ``orders.fifo``),
    ``ack_window`` (30s: the visibility timeout, in whole seconds), ``max_message`` (262144 bytes: SQS takes up to
    1048576 where the queue is set so), ``region``, ``endpoint``, ``profile``, ``timeout`` (10s).
    """

    def __init__(self, address: Address) -> None:
        self._account = parse(address)
        self._clients: dict[asyncio.AbstractEventLoop, Client] = {}
        self._fifo = address.take("fifo", flag, False)
        self._window = math.ceil(address.seconds("ack_window", 30.0))
        self._max_message = address.take("max_message", int, 256 * KIB)
        address.done()
        if not 0 < self._window <= LONGEST_WINDOW:
            raise InvalidOption("ack_window of sqs:// is at most 12h")
        if not KIB <= self._max_message <= KIB * KIB:
            raise InvalidOption("max_message of sqs:// is between 1024 and 1048576")
        self.capabilities = BrokerCapabilities(
            name="sqs",
            native_delay=True,
            ordering="key" if self._fifo else "none",
            ack_window=float(self._window),
            extends=True,
            counts_attempts=True,
            redelivery_horizon=float(RETENTION),
            dedup_window=DEDUP_WINDOW if self._fifo else None,
            max_body=max(self._max_message - HEADERS, KIB // 2) * 3 // 4,  # in base64
        )

    def publisher(self) -> SQSPublisher:
        return SQSPublisher(self._client(), self._name, self._max_message, self._fifo)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> SQSConsumer:
        name, dead = self._name(queue), self._dead_name(queue)
        return SQSConsumer(self._client(), queue, name, dead, prefetch, self._window)

    def dead_letters(self, queue: str, *, group: str) -> SQSDeadLetters:
        return SQSDeadLetters(self._client(), queue, self._dead_name(queue))

    async def declare(self, queue: str, *, group: str) -> None:
        kept = {"MessageRetentionPeriod": str(RETENTION)}
        own = kept | ({"FifoQueue": "true"} if self._fifo else {})
        await _create(self._client(), self._name(queue), own)
        await _create(self._client(), self._dead_name(queue), kept)

    async def check(self, queue: str, *, group: str) -> None:
        name, dead = self._name(queue), self._dead_name(queue)
        reply = await self._client().call("get_queue_attributes", name, AttributeNames=["All"])
        await self._client().call("get_queue_attributes", dead, AttributeNames=["QueueArn"])
        attributes = reply.get("Attributes", {})
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        target = str(policy.get("deadLetterTargetArn", "")).rpartition(":")[2]
        if target not in ("", dead):
            raise ConfigurationError(
                f"SQS itself would move messages from {name} to {show(target)} after {policy.get('maxReceiveCount')} "
                f"receives, where nobody reads why; remove the queue's redrive policy, or let it name {dead}"
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

    def _client(self) -> Client:
        """One for all on this event loop: opening it takes longer than a call."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients = {each: client for each, client in self._clients.items() if not each.is_closed()}
            self._clients[loop] = Client(self._account)
        return self._clients[loop]

    def _name(self, queue: str) -> str:
        base = require_name(queue).removesuffix(".fifo")
        if base != queue and not self._fifo:
            raise InvalidOption(f"{queue} is the name of a FIFO queue: add fifo=yes to the URL, {self!r}")
        if _QUEUE.fullmatch(base) is None:
            raise InvalidOption(f"{queue!r} is no queue on SQS: up to 70 letters, digits and _ - are")
        return f"{base}.fifo" if self._fifo else base

    def _dead_name(self, queue: str) -> str:
        return f"{self._name(queue).removesuffix('.fifo')}-dead"

    def __repr__(self) -> str:
        return str(self._account)


async def _create(client: Client, name: str, attributes: Mapping[str, str]) -> None:
    """Create it, or take it as it is."""
    try:
        await client.call("get_queue_attributes", name, AttributeNames=["QueueArn"])
    except MissingQueue:
        try:
            await client.call("create_queue", QueueName=name, Attributes=attributes)
        except Refused:  # another was quicker, with other attributes
            await client.call("get_queue_attributes", name, AttributeNames=["QueueArn"])


class SQSPublisher:
    """See `contracts.Publisher`."""

    def __init__(self, client: Client, name: Callable[[str], str], max_message: int, fifo: bool) -> None:
        self._client = client
        self._name = name
        self._max_message = max_message
        self._fifo = fifo

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        name = self._name(queue)
        entries = [entry_of(packet, fifo=self._fifo) for packet in packets]
        sizes = list(map(size_of, entries))
        answers: list[Exception | None] = [self._too_large(size) for size in sizes]

        async def send(chunk: Sequence[int]) -> None:
            sent = await self._client.chunk("send_message_batch", name, [entries[at] for at in chunk])
            for at, answer in zip(chunk, sent, strict=True):
                answers[at] = answer

        chunks = self._chunks(sizes)
        if not self._fifo:
            await asyncio.gather(*map(send, chunks))
        for chunk in chunks if self._fifo else ():  # in their order, and none behind one of its key that failed
            failed = set()
            for at in range(chunk[-1] + 1):
                if answers[at] is not None:
                    failed.add(entries[at]["MessageGroupId"])
                elif at >= chunk[0] and entries[at]["MessageGroupId"] in failed:
                    answers[at] = BrokerUnavailable("it was not sent, since one before it failed; send it again")
            if waiting := [at for at in chunk if answers[at] is None]:
                await send(waiting)
        if answers and all(isinstance(answer, BrokerUnavailable) for answer in answers):
            raise next(filter(None, answers))
        return answers

    def _too_large(self, size: int) -> Exception | None:
        if size <= self._max_message:
            return None
        return Refused(
            f"the message has {size} bytes with its headers, and {self._max_message} are the most; send less, or raise "
            "max_message in the URL and MaximumMessageSize of the queue"
        )

    def _chunks(self, sizes: Sequence[int]) -> list[list[int]]:
        """What goes out together: ten messages, together no larger than one may be."""
        chunks: list[list[int]] = []
        room = 0
        for at, size in enumerate(sizes):
            if size > self._max_message:
                continue
            if size > room or len(chunks[-1]) == CHUNK:
                chunks.append([])
                room = self._max_message
            chunks[-1].append(at)
            room -= size
        return chunks

    async def close(self) -> None:
        return None


class SQSConsumer(WindowedConsumer):
    """See `contracts.Consumer`. A group is only for people here: all consumers of a queue share it."""

    def __init__(self, client: Client, queue: str, name: str, dead: str, prefetch: int, window: int) -> None:
        super().__init__(prefetch, window, LONGEST_POLL)
        self._client = client
        self._queue = queue
        self._name = name
        self._dead = dead

    async def _ask(self, limit: int, wait: float) -> Sequence[Delivery]:
        found = await self._ask_once(min(limit, CHUNK), round(wait))
        if len(found) == CHUNK < limit:
            more = (self._ask_once(CHUNK, 0) for _ in range(limit // CHUNK - 1))
            for deliveries in await asyncio.gather(*more, return_exceptions=True):
                found += deliveries if isinstance(deliveries, list) else []  # a failure comes again with the next poll
        return found

    async def _ask_once(self, limit: int, wait: int) -> list[Delivery]:
        began = time.monotonic()
        reply = await self._client.call(
            "receive_message",
            self._name,
            MaxNumberOfMessages=limit,
            WaitTimeSeconds=wait,
            VisibilityTimeout=math.ceil(self._window),
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=SYSTEM,
        )
        return [
            Delivery(
                packet=packet_of(message),
                queue=self._queue,
                attempt=int(message.get("Attributes", {}).get("ApproximateReceiveCount", 0)),
                handle=Hold(message["ReceiptHandle"], began, began + self._window),
            )
            for message in reply.get("Messages") or ()
        ]

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return await self._ask_for("delete_message_batch", deliveries, lambda hold: {}, gone=True)

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        """A delay is in whole seconds, rounded up, and ends 12 hours after the delivery at the latest."""

        def until(hold: Hold) -> dict[str, Any]:
            longest = LONGEST_WINDOW - math.ceil(time.monotonic() - hold.since)
            return {"VisibilityTimeout": max(min(math.ceil(delay), longest), 0)}

        return await self._ask_for("change_message_visibility_batch", deliveries, until, gone=True)

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        began, window = time.monotonic(), math.ceil(seconds)
        operation = "change_message_visibility_batch"
        answers = await self._ask_for(operation, deliveries, lambda hold: {"VisibilityTimeout": window}, gone=False)
        for delivery, mine in zip(deliveries, answers, strict=True):
            if mine:
                delivery.handle.until = began + window
        return answers

    async def _ask_for(
        self, operation: str, deliveries: Sequence[Delivery], what: Callable[[Hold], dict[str, Any]], *, gone: bool
    ) -> list[bool]:
        """Do it with those that are still ours; ``gone``: then they are no longer."""
        mine = [delivery.handle for delivery in deliveries if self._owns(delivery.handle)]
        entries = [{"ReceiptHandle": hold.token, **what(hold)} for hold in mine]
        answers = await self._client.batch(operation, self._name, entries)
        if answers and all(isinstance(answer, BrokerUnavailable) for answer in answers):
            raise next(filter(None, answers))
        # An answer that comes after the end of the window may be about another's delivery.
        kept = {hold for hold, error in zip(mine, answers, strict=True) if error is None and self._owns(hold)}
        for hold in mine:
            if gone or hold not in kept:
                self._drop(hold)
        return [delivery.handle in kept for delivery in deliveries]

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        if not self._owns(delivery.handle):
            return False
        letter = replace(delivery.packet, headers={**delivery.packet.headers, **headers})
        (refused,) = await self._client.chunk("send_message_batch", self._dead, [entry_of(letter)])
        if refused is not None:
            raise refused
        return all(await self.ack([delivery]))

    async def flush(self) -> None:
        return None

    async def close(self) -> None:
        """What cannot be given back comes when its window is over."""
        entries = [{"ReceiptHandle": hold.token, "VisibilityTimeout": 0} for hold in await self._stop()]
        await self._client.batch("change_message_visibility_batch", self._name, entries)
