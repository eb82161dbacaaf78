"""Publishing to JetStream: a batch is sent at once, and the stream's replies are awaited together.

The server drops a second packet with an id that it has seen within the dedup window (``Nats-Msg-Id``). That is right
only while the first packet still waits in the stream: the server has seen the id of a redriven dead letter, too. So
where the server replies "duplicate" and the first is no longer in the stream, the packet is sent again without an id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from effectonce.backends.common.reconnecting_connection import ReconnectingConnection
from effectonce.contracts import Packet
from effectonce.errors import ConfigurationError, show

from .connection import JetStreamRefusal, NatsConnection, read_status
from .packets import NO_MESSAGE_ID, make_headers
from .streams import NO_MESSAGE_FOUND, MissingStream, StreamDeclarations, missing_stream, require_subject

_HEADER_LINE_BYTES: Final = 4  # of a header beside its name and value: a colon, a space and the end of the line
_MESSAGE_OVERHEAD_BYTES: Final = 100  # at most, for the line of the version and the header with the stream's name


class NatsPublisher:
    """See `contracts.Publisher`. A queue without a stream gets one, unless ``stream`` names one that others declare."""

    def __init__(self, streams: StreamDeclarations) -> None:
        self._streams = streams
        self._connection = ReconnectingConnection(lambda: NatsConnection.open(streams.endpoint, "effectonce publisher"))

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        streams = self._streams
        connection = await self._connection.get()
        stream, subject = streams.stream_name(queue), require_subject(queue)
        outcomes: list[Exception | Duplicate | None] = [None] * len(packets)

        async def send(indexes: Sequence[int], message_id: str | None) -> None:
            messages = [(make_headers(packets[index], message_id), packets[index].body) for index in indexes]
            published = await publish_messages(connection, stream, subject, messages)
            for index, outcome in zip(indexes, published, strict=True):
                outcomes[index] = outcome

        message_id = None if streams.deduplicates else NO_MESSAGE_ID  # None: each packet's own
        await send(range(len(packets)), message_id)
        undeclared = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, MissingStream)]
        if undeclared and not streams.shared_stream:
            await streams.declare(connection, queue, None)
            await send(undeclared, message_id)
        redriven = [
            index
            for index, outcome in enumerate(outcomes)
            if isinstance(outcome, Duplicate) and not await self._still_waits(connection, stream, outcome)
        ]
        if redriven:
            await send(redriven, NO_MESSAGE_ID)
        return [outcome if isinstance(outcome, Exception) else None for outcome in outcomes]

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


async def publish_messages(
    connection: NatsConnection, stream: str, subject: str, messages: Sequence[tuple[dict[str, str], bytes]]
) -> list[Exception | Duplicate | None]:
    """Publish all messages, each a pair of headers and body. Returns the outcome of each: None where ``stream`` took
    it."""
    outcomes: list[Exception | Duplicate | None] = [None] * len(messages)
    requests: dict[int, asyncio.Future[Any]] = {}
    max_payload = connection.client.max_payload
    for index, (headers, body) in enumerate(messages):
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
