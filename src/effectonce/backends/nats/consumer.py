"""One consumer of a JetStream queue. The server has one durable consumer for the whole group.

A delivery belongs to its consumer for the ack window, even if the connection is lost; then it is redelivered. The
server takes a late ack for that of the next owner (F57: a stale ack settles another's delivery). So the consumer
watches the window itself, and sends nothing for a delivery whose window is over. An ack may still cross with a
redelivery. That is harmless: the worker acks only messages that are recorded as done, and the next owner of one finds
that record.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from effectonce.backends.common.reconnecting_connection import ReconnectingConnection
from effectonce.backends.common.visibility_timeout import HeldDelivery, UnsettledDeliveries
from effectonce.contracts import Delivery
from effectonce.errors import BrokerUnavailable, show

from .connection import NatsConnection, load_driver, read_status
from .packets import make_headers, read_packet
from .publisher import NatsMessage, publish_messages
from .streams import MissingStream, StreamDeclarations, encode_name, missing_stream, no_leader

MIN_PULL_S: Final = 0.02


class NatsConsumer:
    """See `contracts.Consumer`. `extend` starts the ack window again, whatever ``seconds`` is: the server knows no
    other time. A delivery's key is the subject on which it is settled."""

    def __init__(self, streams: StreamDeclarations, queue: str, group: str, prefetch: int) -> None:
        self._streams = streams
        self._queue = queue
        self._group = group
        self._connection = ReconnectingConnection(lambda: NatsConnection.open(streams.endpoint, f"effectonce {group}"))
        api = streams.endpoint.jetstream_api
        self._pull_subject = f"{api}.CONSUMER.MSG.NEXT.{streams.stream_name(queue)}.{encode_name(group)}"
        # A delivery counts as ours for a little less than the window, so that an ack does not cross with a redelivery.
        self._owned_for = streams.window - min(1.0, streams.window / 10)
        self._arrived: deque[Delivery] = deque()  # not yet returned by `receive`
        self._unsettled: UnsettledDeliveries[HeldDelivery] = UnsettledDeliveries(max(1, prefetch))
        self._subscribed: NatsConnection | None = None  # the connection on which we subscribed to our inbox
        self._subscription: Any = None
        self._inbox = ""  # the server sends messages to {inbox}.{number of the pull}
        self._pull_number = 0
        self._pull_remaining = 0  # how many messages of the last pull may still arrive
        self._pull_overdue_at = 0.0  # when the server should have ended the last pull, with a margin
        self._failure: Exception | None = None
        self._wake_up = asyncio.Event()

    # -- receiving

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(wait, MIN_PULL_S)
        while True:
            self._wake_up.clear()
            connection = await self._subscribe()
            now = loop.time()
            if deliveries := self._take_arrived(limit):
                return deliveries
            if self._failure is not None:
                error, self._failure = self._failure, None
                if isinstance(error, MissingStream):
                    error = await self._streams.explain_silence(connection, self._queue, self._group)
                raise error
            if self._pull_remaining and now > self._pull_overdue_at:
                await connection.close()  # the server ends every pull with a status, so this connection is dead
                continue
            if now >= deadline:
                return []
            room = min(limit, self._unsettled.room())
            if not self._pull_remaining and room > 0:
                await self._pull(connection, room, max(deadline - now, MIN_PULL_S))
            with suppress(TimeoutError):
                async with asyncio.timeout_at(
                    min(deadline, self._pull_overdue_at) if self._pull_remaining else deadline
                ):
                    await self._wake_up.wait()

    async def _subscribe(self) -> NatsConnection:
        """Return the connection, with a subscription to our inbox. Where the last one was lost, raise its error first,
        once."""
        if self._subscribed is not None:
            if self._subscribed.lost is None:
                return self._subscribed
            error, self._subscribed = self._subscribed.lost, None
            if isinstance(error, BrokerUnavailable):
                raise BrokerUnavailable(f"deliveries of {self._queue} stopped: {error}")
            raise error
        connection = await self._connection.get()
        self._inbox, self._pull_remaining, self._failure = connection.client.new_inbox(), 0, None
        self._subscription = await connection.subscribe(f"{self._inbox}.*", self._handle_message)
        connection.on_lost = self._wake_up.set
        self._subscribed = connection
        return connection

    async def _pull(self, connection: NatsConnection, count: int, seconds: float) -> None:
        """Ask the server for up to ``count`` messages within ``seconds``. They arrive in `_handle_message`."""
        self._pull_number += 1
        self._pull_remaining = count
        self._pull_overdue_at = asyncio.get_running_loop().time() + seconds + connection.endpoint.timeout
        request = {"batch": count, "expires": round(seconds * 1e9)}
        await connection.publish(self._pull_subject, msgspec.json.encode(request), f"{self._inbox}.{self._pull_number}")

    async def _handle_message(self, message: Any) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._pull_remaining = max(0, self._pull_remaining - 1)
            held = HeldDelivery(message.reply, time.monotonic() + self._owned_for)
            self._unsettled.add(held)
            packet = read_packet(message.headers, message.data)
            attempt = _parse_ack_subject(message.reply).delivery_count
            self._arrived.append(Delivery(packet=packet, queue=self._queue, attempt=attempt, handle=held))
        elif (status := read_status(message)) != 100:
            self._handle_status(status, message)
        self._wake_up.set()

    def _handle_status(self, status: int, message: Any) -> None:
        """Handle a status with which the server ends a pull: no message in time (404, 408), or it cannot serve it."""
        if message.subject == f"{self._inbox}.{self._pull_number}":
            self._pull_remaining = 0
        if status in (404, 408):
            return
        description = (message.headers or {}).get("Description", status)
        endpoint = self._streams.endpoint
        if status == 503 or "deleted" in str(description).lower():
            self._failure = missing_stream(endpoint, self._queue)
        else:
            self._failure = BrokerUnavailable(
                f"{endpoint.shown} delivers nothing from {self._queue}: {show(description)}"
            )

    def _take_arrived(self, limit: int) -> list[Delivery]:
        deliveries: list[Delivery] = []
        while self._arrived and len(deliveries) < limit:
            delivery = self._arrived.popleft()
            if self._unsettled.owns(delivery.handle):  # else its window ended while it waited here
                deliveries.append(delivery)
        return deliveries

    # -- settling

    async def _send_for_owned(self, deliveries: Sequence[Delivery], payload: bytes) -> list[bool]:
        """Send ``payload`` for every delivery this consumer still owns. Returns which ones were owned."""
        answers = []
        for delivery in deliveries:
            is_owned = self._unsettled.owns(delivery.handle)
            if is_owned:
                await (await self._connection.get()).publish(delivery.handle.key, payload)
            answers.append(is_owned)
        return answers

    async def _settle(self, deliveries: Sequence[Delivery], payload: bytes) -> list[bool]:
        answers = await self._send_for_owned(deliveries, payload)
        for delivery in deliveries:
            self._unsettled.release(delivery.handle)
        self._wake_up.set()  # a receive may wait for room
        return answers

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return await self._settle(deliveries, b"+ACK")

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await self._settle(deliveries, b'-NAK {"delay": %d}' % round(delay * 1e9) if delay > 0 else b"-NAK")

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        answers = await self._send_for_owned(deliveries, b"+WPI")
        ends_at = time.monotonic() + self._owned_for
        for delivery, is_owned in zip(deliveries, answers, strict=True):
            if is_owned:
                delivery.handle.ends_at = ends_at
        return answers

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        held: HeldDelivery = delivery.handle
        if not self._unsettled.owns(held):
            return False
        streams, connection = self._streams, await self._connection.get()
        stream = streams.dead_letter_stream(self._queue, self._group)
        subject = streams.dead_letter_subject(self._queue, self._group)
        packet = msgspec.structs.replace(delivery.packet, headers={**delivery.packet.headers, **headers})
        # Its sequence number in the queue makes its id there, so that dead-lettering it twice does not double it.
        message_id = f"{streams.stream_name(self._queue)}.{_parse_ack_subject(held.key).stream_sequence}"
        messages = [NatsMessage(subject, make_headers(packet, message_id), packet.body)]
        (outcome,) = await publish_messages(connection, stream, messages)
        if isinstance(outcome, MissingStream):
            await streams.declare_dead_letters(connection, self._queue, self._group)
            (outcome,) = await publish_messages(connection, stream, messages)
        if isinstance(outcome, MissingStream):
            outcome = no_leader(streams.endpoint, stream)
        if isinstance(outcome, Exception):
            raise outcome
        if not self._unsettled.owns(held):
            return False
        await connection.gather_replies(await connection.request(held.key, b"+ACK"))
        self._unsettled.release(held)
        self._wake_up.set()
        return True

    async def flush(self) -> None:
        if self._subscribed is not None and self._subscribed.lost is None:
            await self._subscribed.flush()

    async def close(self) -> None:
        connection, self._subscribed = self._subscribed, None
        if connection is not None and connection.lost is None:
            connection.on_lost = None
            try:
                await self._subscription.unsubscribe()
                await connection.flush()  # all that was on its way to us has arrived now
                await asyncio.sleep(0)
                for held in filter(self._unsettled.owns, self._unsettled):
                    await connection.publish(held.key, b"-NAK")
                await connection.flush()
            except (BrokerUnavailable, load_driver().errors.Error):
                pass  # the server redelivers what was not given back when its window ends
        self._arrived.clear()
        self._unsettled.release_all()
        await self._connection.close()


class _AckSubject(NamedTuple):
    """What the subject says on which a message is settled:
    ``$JS.ACK[.domain.account].stream.consumer.delivered.stream_sequence.consumer_sequence.time.pending``, and with a
    domain one more word."""

    delivery_count: int
    stream_sequence: int


def _parse_ack_subject(subject: str) -> _AckSubject:
    words = subject.split(".")
    start = 4 if len(words) == 9 else 6  # where the server has domains, two more words come first
    return _AckSubject(int(words[start]), int(words[start + 1]))
