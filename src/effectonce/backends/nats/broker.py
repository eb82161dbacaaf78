"""NATS JetStream: streams, durable pull consumers, and publishing that waits for the stream's ack.

A delivery stays with its group for the ack window, whatever becomes of the connection; then it is delivered again. The
server does not tell an ack that comes too late from the heir's own: it takes it for that (F57). So we watch the window
ourselves, and send nothing for a delivery whose window is over. Even so an ack may cross with a redelivery: the worker
acks only what is recorded as done, and then it does not matter whose ack it was.

A second packet with an id that the server has seen within the window is dropped by it (``Nats-Msg-Id``). That is right
only while the first is still waiting: a dead letter that is sent again was seen, too. So where the server says
"duplicate" and the first is gone, it is sent once more, under no id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from effectonce.backends.common.reconnecting import Link
from effectonce.contracts import BrokerCapabilities, Delivery, Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, show
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address

from .connection import API, Endpoint, Line, Refused, driver, status_of
from .packets import headers_of, packet_of
from .streams import (
    NO_MESSAGE,
    MissingStream,
    NatsDeadLetters,
    Retention,
    Streams,
    consumer_name,
    missing,
    subject_of,
)

MAX_BODY: Final = 960 * 1024  # the server's default for a message is 1 MB, headers included
SHORTEST_PULL: Final = 0.02


class NatsBackend:
    """``nats://user:password@host:4222``, or ``nats://token@host:4222``.

    Options: ``ack_window`` (30s), ``dedup_window`` (2m), ``retention`` (``workqueue``, or ``limits`` for several
    groups), ``max_age`` (15d; of ``limits``), ``replicas`` (1), ``stream`` (one that others have made, for all
    queues), ``nodes`` (``host:port,host:port``, other servers of the cluster), ``timeout`` (5 s), ``credentials`` (a
    file), ``tls``, ``ca_file``, ``cert_file`` and ``key_file``.
    """

    def __init__(self, address: Address) -> None:
        workqueue: Retention = "workqueue"
        if address.path not in ("", "/"):
            raise InvalidOption(f"nats:// has no path; name a stream with stream=, got {address}")
        self._streams = Streams(
            retention=address.take("retention", _retention, workqueue),
            window=address.seconds("ack_window", 30.0),
            dedup_window=address.seconds("dedup_window", 120.0),
            max_age=address.seconds("max_age", 15 * 86_400.0),
            replicas=address.take("replicas", int, 1),
            given=address.take("stream", str, ""),
            endpoint=Endpoint(address),
        )
        address.done()
        driver()
        streams = self._streams
        several = streams.retention == "limits"
        self.capabilities = BrokerCapabilities(
            name="nats",
            native_delay=True,
            ordering="queue",
            ack_window=streams.window,
            extends=True,
            counts_attempts=True,
            groups=several,
            redelivery_horizon=streams.max_age if several else None,
            dedup_window=streams.dedup_window if streams.deduplicates else None,
            max_body=MAX_BODY,
        )

    def publisher(self) -> NatsPublisher:
        return NatsPublisher(self._streams)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> NatsConsumer:
        return NatsConsumer(self._streams, subject_of(queue), require_name(group, "group"), prefetch)

    def dead_letters(self, queue: str, *, group: str) -> NatsDeadLetters:
        return NatsDeadLetters(self._streams, subject_of(queue), require_name(group, "group"))

    async def declare(self, queue: str, *, group: str) -> None:
        line = await Line.open(self._streams.endpoint, "effectonce")
        try:
            await self._streams.declare(line, subject_of(queue), require_name(group, "group"))
        finally:
            await line.close()

    async def check(self, queue: str, *, group: str) -> None:
        line = await Line.open(self._streams.endpoint, "effectonce")
        try:
            await self._streams.check(line, subject_of(queue), require_name(group, "group"))
        finally:
            await line.close()

    async def close(self) -> None:
        return None

    def __repr__(self) -> str:
        return self._streams.endpoint.shown


def _retention(text: str) -> Retention:
    for kind in get_args(Retention):
        if text == kind:
            return kind  # type: ignore[no-any-return]
    raise InvalidOption("retention is workqueue or limits")


# -- publishing


class NatsPublisher:
    """See `contracts.Publisher`. A queue without a stream gets one, unless ``stream`` says that others see to that."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._link = Link(lambda: Line.open(streams.endpoint, "effectonce publisher"))

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        streams = self._streams
        line = await self._link.connection()
        name, subject = streams.name(queue), subject_of(queue)
        own_id = None if streams.deduplicates else ""
        answers = await send(line, name, subject, [(headers_of(each, own_id), each.body) for each in packets])
        again = [n for n, answer in enumerate(answers) if isinstance(answer, MissingStream)]
        if again and not streams.given:
            await streams.declare(line, queue, None)
            found = await send(line, name, subject, [(headers_of(packets[n], own_id), packets[n].body) for n in again])
            for n, answer in zip(again, found, strict=True):
                answers[n] = answer
        gone = [
            n for n, seen in enumerate(answers) if isinstance(seen, Seen) and not await self._waits(line, name, seen)
        ]
        if gone:
            found = await send(line, name, subject, [(headers_of(packets[n], ""), packets[n].body) for n in gone])
            for n, answer in zip(gone, found, strict=True):
                answers[n] = answer
        return [answer if isinstance(answer, Exception) else None for answer in answers]

    @staticmethod
    async def _waits(line: Line, name: str, seen: Seen) -> bool:
        """Whether the first packet of an id is still in the stream."""
        try:
            await line.api(f"STREAM.MSG.GET.{name}", {"seq": seen.number})
        except Refused as error:
            if error.number != NO_MESSAGE:
                raise
            return False
        return True

    async def close(self) -> None:
        await self._link.close()


class Seen(Struct, frozen=True):
    """The server has had a message with this id before, as this number of the stream."""

    number: int


async def send(
    line: Line, stream: str, subject: str, messages: Sequence[tuple[dict[str, str], bytes]]
) -> list[Exception | Seen | None]:
    """Send all, and wait until ``stream`` has answered for each."""
    answers: list[Exception | Seen | None] = [None] * len(messages)
    asked: dict[int, asyncio.Future[Any]] = {}
    for index, (headers, body) in enumerate(messages):
        size = len(body) + sum(len(name) + len(value) + 4 for name, value in headers.items()) + 100
        if size > line.client.max_payload:
            answers[index] = ConfigurationError(
                f"a message of about {size} bytes is over the server's max_payload of {line.client.max_payload}; raise "
                "it, or send a reference"
            )
        else:
            asked[index] = await line.ask(subject, body, {**headers, "Nats-Expected-Stream": stream})
    for index, answer in zip(asked, await line.answers(*asked.values()), strict=True):
        if status_of(answer) == 503:
            answers[index] = missing(line.endpoint, subject)
            continue
        answers[index] = _outcome(line, subject, answer.data)
    return answers


def _outcome(line: Line, subject: str, answer: bytes) -> Exception | Seen | None:
    try:
        found = msgspec.json.decode(answer, type=dict[str, Any])
    except msgspec.DecodeError:
        found = {}
    if "error" in found:
        return line.refusal(found["error"])
    if "seq" not in found:
        return ConfigurationError(f"something else than a stream answers to {show(subject)} at {line.endpoint.shown}")
    return Seen(int(found["seq"])) if found.get("duplicate") else None


# -- consuming


class NatsConsumer:
    """See `contracts.Consumer`. `extend` keeps a delivery for the ack window from now, whatever it is asked for: the
    server knows no other span."""

    def __init__(self, streams: Streams, queue: str, group: str, prefetch: int) -> None:
        self._streams = streams
        self._queue = queue
        self._group = group
        self._prefetch = max(1, prefetch)
        self._link = Link(lambda: Line.open(streams.endpoint, f"effectonce {group}"))
        self._source = f"{API}.CONSUMER.MSG.NEXT.{streams.name(queue)}.{consumer_name(group)}"
        # An ack must not cross with the redelivery: what has less than this left is no longer ours.
        self._ours = streams.window - min(1.0, streams.window / 10)
        self._arrived: deque[Delivery] = deque()
        self._until: dict[str, float] = {}  # what is unsettled, and when it ceases to be ours
        self._line: Line | None = None
        self._subscription: Any = None
        self._inbox = ""
        self._pulls = 0
        self._coming = 0  # of the last pull
        self._overdue = 0.0  # when the last pull should long have been answered
        self._failure: Exception | None = None
        self._woken: asyncio.Future[None] | None = None

    # -- receiving

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(wait, SHORTEST_PULL)
        while True:
            line = await self._listening()
            now = loop.time()
            self._until = {handle: end for handle, end in self._until.items() if end > now}
            if found := self._take(limit):
                return found
            if self._failure is not None:
                error, self._failure = self._failure, None
                raise error
            if self._coming and now > self._overdue:
                await line.close()  # a pull ends with a word of the server's: this connection leads nowhere
                continue
            room = min(limit, self._prefetch - len(self._until))
            if now >= deadline:
                return []
            if not self._coming and room > 0:
                await self._pull(line, room, max(deadline - now, SHORTEST_PULL))
            self._woken = loop.create_future()
            timer = loop.call_at(min(deadline, self._overdue) if self._coming else deadline, self._wake)
            try:
                await self._woken
            finally:
                timer.cancel()

    async def _listening(self) -> Line:
        """The connection, with our inbox on it."""
        if self._line is not None:
            if self._line.lost is None:
                return self._line
            error, self._line = self._line.lost, None
            if isinstance(error, BrokerUnavailable):
                raise BrokerUnavailable(f"deliveries of {self._queue} stopped: {error}")
            raise error
        line = await self._link.connection()
        self._inbox, self._coming, self._failure = line.client.new_inbox(), 0, None
        self._subscription = await line.subscribe(f"{self._inbox}.*", self._heard)
        line.on_lost = self._wake
        self._line = line
        return line

    async def _pull(self, line: Line, count: int, seconds: float) -> None:
        self._pulls += 1
        self._coming = count
        self._overdue = asyncio.get_running_loop().time() + seconds + line.endpoint.timeout
        request = {"batch": count, "expires": round(seconds * 1e9)}
        await line.send(self._source, msgspec.json.encode(request), f"{self._inbox}.{self._pulls}")

    async def _heard(self, message: Any) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._coming = max(0, self._coming - 1)
            self._until[message.reply] = asyncio.get_running_loop().time() + self._ours
            packet = packet_of(message.headers, message.data)
            attempt, _ = _numbers(message.reply)
            delivery = Delivery(packet=packet, queue=self._queue, attempt=attempt, handle=message.reply)
            self._arrived.append(delivery)
        elif (status := status_of(message)) != 100:
            if message.subject == f"{self._inbox}.{self._pulls}":
                self._coming = 0
            if status not in (404, 408):
                why = (message.headers or {}).get("Description", status)
                gone = status == 503 or "deleted" in str(why).lower()
                shown = self._streams.endpoint.shown
                self._failure = (
                    missing(self._streams.endpoint, self._queue)
                    if gone
                    else BrokerUnavailable(f"{shown} gives no deliveries of {self._queue}: {show(why)}")
                )
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _take(self, limit: int) -> list[Delivery]:
        found: list[Delivery] = []
        while self._arrived and len(found) < limit:
            delivery = self._arrived.popleft()
            if delivery.handle in self._until:  # else it waited here for too long
                found.append(delivery)
        return found

    # -- settling

    async def _say(self, deliveries: Sequence[Delivery], word: bytes) -> list[bool]:
        """Say ``word`` about each that is still ours."""
        answers = []
        for delivery in deliveries:
            ours = self._mine(delivery)
            if ours:
                await (await self._link.connection()).send(delivery.handle, word)
            answers.append(ours)
        return answers

    async def _settle(self, deliveries: Sequence[Delivery], word: bytes) -> list[bool]:
        answers = await self._say(deliveries, word)
        for delivery in deliveries:
            self._until.pop(delivery.handle, None)
        self._wake()  # a receive may wait for room
        return answers

    def _mine(self, delivery: Delivery) -> bool:
        return self._until.get(delivery.handle, 0.0) > asyncio.get_running_loop().time()

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return await self._settle(deliveries, b"+ACK")

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await self._settle(deliveries, b'-NAK {"delay": %d}' % round(delay * 1e9) if delay > 0 else b"-NAK")

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        answers = await self._say(deliveries, b"+WPI")
        until = asyncio.get_running_loop().time() + self._ours
        self._until |= {delivery.handle: until for delivery, ours in zip(deliveries, answers, strict=True) if ours}
        return answers

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        if not self._mine(delivery):
            return False
        streams, line = self._streams, await self._link.connection()
        name, subject = streams.dead_name(self._queue, self._group), streams.dead_subject(self._queue, self._group)
        packet = msgspec.structs.replace(delivery.packet, headers={**delivery.packet.headers, **headers})
        # Known by its place in the queue, so that a second attempt to give it up is not a second letter.
        own_id = f"{streams.name(self._queue)}.{_numbers(delivery.handle)[1]}"
        letter = [(headers_of(packet, own_id), packet.body)]
        (answer,) = await send(line, name, subject, letter)
        if isinstance(answer, MissingStream):
            await streams.declare_dead(line, self._queue, self._group)
            (answer,) = await send(line, name, subject, letter)
        if isinstance(answer, Exception):
            raise answer
        if not self._mine(delivery):
            return False
        await line.answers(await line.ask(delivery.handle, b"+ACK"))
        self._until.pop(delivery.handle, None)
        self._wake()
        return True

    async def flush(self) -> None:
        if self._line is not None and self._line.lost is None:
            await self._line.flush()

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is not None and line.lost is None:
            line.on_lost = None
            try:
                await self._subscription.unsubscribe()
                await line.flush()  # what was on its way to us has come now
                await asyncio.sleep(0)
                for handle in list(self._until):
                    await line.send(handle, b"-NAK")
                await line.flush()
            except (BrokerUnavailable, driver().errors.Error):
                pass
        self._arrived.clear()
        self._until.clear()
        await self._link.close()


def _numbers(handle: str) -> tuple[int, int]:
    """How often it was delivered, and its number in the stream."""
    words = handle.split(".")
    at = 4 if len(words) == 9 else 6  # where the server has domains, two words more come first
    return int(words[at]), int(words[at + 1])
