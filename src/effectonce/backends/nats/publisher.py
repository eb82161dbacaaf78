"""Publishing to JetStream: a batch is sent at once, and the stream's replies are awaited together.

The server drops a second packet with an id that it has seen within the dedup window (``Nats-Msg-Id``). That is right
only while the first packet still waits in the stream: the server has seen the id of a redriven dead letter, too. So
where the server replies "duplicate" and the first is no longer in the stream, the packet is sent again without an id.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from effectonce.backends.common.reconnecting_connection import ReconnectingConnection
from effectonce.contracts import Packet
from effectonce.errors import ConfigurationError, show

from .connection import JetStreamRefusal, NatsConnection, read_status
from .packets import NO_MESSAGE_ID, SCHEDULE_HEADER, SCHEDULE_TARGET_HEADER, make_headers
from .streams import NO_MESSAGE_FOUND, MissingStream, StreamDeclarations, delay_subject, missing_stream, require_subject

_HEADER_LINE_BYTES: Final = 4  # of a header beside its name and value: a colon, a space and the end of the line
_MESSAGE_OVERHEAD_BYTES: Final = 100  # at most, for the line of the version and the header with the stream's name


class NatsPublisher:
    """See `contracts.Publisher`. A queue without a stream gets one, unless ``stream`` names one that others declare."""

    def __init__(self, streams: StreamDeclarations) -> None:
        self._streams = streams
        self._connection = ReconnectingConnection(lambda: NatsConnection.open(streams.endpoint, "effectonce publisher"))
        self._delaying_on: NatsConnection | None = None
        self._delaying_queues: set[str] = set()  # whose streams take delayed messages, as asked on that connection

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        streams = self._streams
        connection = await self._connection.get()
        stream, subject = streams.stream_name(queue), require_subject(queue)
        outcomes: list[Exception | Duplicate | None] = [None] * len(packets)

        async def send(indexes: Sequence[int], message_id: str | None) -> None:
            if any(packets[index].delay_s for index in indexes):
                await self._allow_delays(connection, queue)
            messages = [make_message(packets[index], subject, stream, message_id) for index in indexes]
            published = await publish_messages(connection, stream, messages)
            for index, outcome in zip(indexes, published, strict=True):
                outcomes[index] = outcome

        message_id = None if streams.deduplicates else NO_MESSAGE_ID  # None: each packet's own
        await send(range(len(packets)), message_id)
        unanswered = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, MissingStream)]
        if unanswered and not streams.shared_stream:
            await streams.declare(connection, queue, None)
            self._delaying_queues.discard(queue)  # its stream is a new one
            await send(unanswered, message_id)
            unanswered = [index for index in unanswered if isinstance(outcomes[index], MissingStream)]
        if unanswered:
            error = await streams.explain_silence(connection, queue)
            for index in unanswered:
                outcomes[index] = error
        redriven = [
            index
            for index, outcome in enumerate(outcomes)
            if isinstance(outcome, Duplicate) and not await self._still_waits(connection, stream, outcome)
        ]
        if redriven:
            await send(redriven, NO_MESSAGE_ID)
        return [outcome if isinstance(outcome, Exception) else None for outcome in outcomes]

    async def _allow_delays(self, connection: NatsConnection, queue: str) -> None:
        """Let the stream take delayed messages, once for each connection."""
        if self._delaying_on is not connection:
            self._delaying_on, self._delaying_queues = connection, set()
        if queue not in self._delaying_queues:
            try:
                await self._streams.allow_delays(connection, queue)
            except MissingStream:
                if self._streams.shared_stream:
                    raise
                await self._streams.declare(connection, queue, None)
                await self._streams.allow_delays(connection, queue)
            self._delaying_queues.add(queue)

    @staticmethod
    async def _still_waits(connection: NatsConnection, stream: str, duplicate: Duplicate) -> bool:
        """Whether the first packet with this id is still in the stream: not handled yet."""
        try:
            await connection.call_jetstream(f"STREAM.MSG.GET.{stream}", {"seq": duplicate.first_sequence})
        except JetStreamRefusal as error:
            if error.err_code != NO_MESSAGE_FOUND:
                raise
            return False
        return True

    async def close(self) -> None:
        await self._connection.close()


class Duplicate(Struct, frozen=True):
    """The server dropped a message, since an earlier one, with this sequence number, has the same id."""

    first_sequence: int


class NatsMessage(NamedTuple):
    """A message as it is sent."""

    subject: str
    headers: dict[str, str]
    body: bytes


def make_message(packet: Packet, subject: str, stream: str, message_id: str | None) -> NatsMessage:
    """Make the message that carries ``packet``. ``message_id``: see `make_headers`.

    A delayed one is a schedule: a message on a subject of its own, which the server sends to ``subject`` when it is
    due, and removes. It is due at a time on this machine's clock, which the server compares with its own.
    """
    headers = make_headers(packet, message_id)
    if not packet.delay_s:
        return NatsMessage(subject, headers, packet.body)
    due = datetime.now(UTC) + timedelta(seconds=packet.delay_s)
    schedule = {SCHEDULE_HEADER: f"@at {due.isoformat()}", SCHEDULE_TARGET_HEADER: subject}
    return NatsMessage(f"{delay_subject(stream)}.{os.urandom(16).hex()}", {**headers, **schedule}, packet.body)


async def publish_messages(
    connection: NatsConnection, stream: str, messages: Sequence[NatsMessage]
) -> list[Exception | Duplicate | None]:
    """Publish all messages. Returns the outcome of each: None where ``stream`` took it."""
    outcomes: list[Exception | Duplicate | None] = [None] * len(messages)
    requests: dict[int, asyncio.Future[Any]] = {}
    max_payload = connection.client.max_payload
    for index, (subject, headers, body) in enumerate(messages):
        lines = sum(len(name) + len(value) + _HEADER_LINE_BYTES for name, value in headers.items())
        size = len(body) + lines + _MESSAGE_OVERHEAD_BYTES
        if size > max_payload:
            outcomes[index] = ConfigurationError(
                f"a message of about {size} bytes exceeds the server's max_payload of {max_payload}; raise it, or send "
                "a reference"
            )
        else:
            requests[index] = await connection.request(subject, body, {**headers, "Nats-Expected-Stream": stream})
    for index, reply in zip(requests, await connection.gather_replies(*requests.values()), strict=True):
        subject = messages[index].subject
        if read_status(reply) == 503:
            outcomes[index] = missing_stream(connection.endpoint, subject)
        else:
            outcomes[index] = _parse_publish_reply(connection, subject, reply.data)
    return outcomes


def _parse_publish_reply(connection: NatsConnection, subject: str, data: bytes) -> Exception | Duplicate | None:
    try:
        reply = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        reply = {}
    if "error" in reply:
        return connection.translate_error(reply["error"])
    if "seq" not in reply:
        return ConfigurationError(
            f"a subscriber that is not a stream answered on {show(subject)} at {connection.endpoint.shown}; use "
            "another queue name"
        )
    return Duplicate(int(reply["seq"])) if reply.get("duplicate") else None
