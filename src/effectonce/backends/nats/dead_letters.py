"""The dead letters of a queue on JetStream, which have a stream of their own."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from effectonce.backends.common.reconnecting_connection import ReconnectingConnection
from effectonce.contracts import DeadLetter
from effectonce.errors import ConfigurationError

from .connection import JetStreamRefusal, NatsConnection
from .packets import read_packet
from .streams import ALREADY_DELETED, NO_MESSAGE_FOUND, StreamDeclarations, missing_stream


class NatsDeadLetters:
    """See `contracts.DeadLetters`. A dead letter's id is its sequence number. Browsing hides none from other
    readers."""

    def __init__(self, streams: StreamDeclarations, queue: str, group: str) -> None:
        self._streams = streams
        self._queue = queue
        self._stream = streams.dead_letter_stream(queue, group)
        self._subject = streams.dead_letter_subject(queue, group)
        self._connection = ReconnectingConnection(
            lambda: NatsConnection.open(streams.endpoint, "effectonce dead letters")
        )

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        connection = await self._connection.get()
        page: list[DeadLetter] = []
        after = int(cursor) if cursor else 0
        while len(page) <= limit:
            message = await self._get_message(connection, after + 1)
            if message is None:
                return page, None
            after = int(message["seq"])
            headers = _parse_headers(b64decode(message.get("hdrs", "")))
            packet = read_packet(headers, b64decode(message.get("data", "")))
            page.append(DeadLetter(id=str(after), packet=packet, queue=self._queue))
        return page[:limit], page[limit - 1].id

    async def _get_message(self, connection: NatsConnection, sequence: int) -> dict[str, Any] | None:
        """The first message from ``sequence`` on; None where there is none."""
        try:
            reply = await connection.call_jetstream(
                f"STREAM.MSG.GET.{self._stream}", {"seq": sequence, "next_by_subj": self._subject}
            )
        except JetStreamRefusal as error:
            if error.err_code == NO_MESSAGE_FOUND:
                return None
            raise self._translate(error) from error
        return dict(reply["message"])

    async def remove(self, ids: Sequence[str]) -> int:
        connection = await self._connection.get()
        removed = 0
        for id in filter(str.isdigit, dict.fromkeys(ids)):
            try:
                await connection.call_jetstream(f"STREAM.MSG.DELETE.{self._stream}", {"seq": int(id), "no_erase": True})
                removed += 1
            except JetStreamRefusal as error:
                if error.status != 404 and error.err_code not in ALREADY_DELETED:
                    raise
        return removed

    async def count(self) -> int:
        connection = await self._connection.get()
        try:
            return int((await connection.call_jetstream(f"STREAM.INFO.{self._stream}"))["state"]["messages"])
        except JetStreamRefusal as error:
            raise self._translate(error) from error

    def _translate(self, error: JetStreamRefusal) -> ConfigurationError:
        return missing_stream(self._streams.endpoint, self._queue) if error.status == 404 else error

    async def close(self) -> None:
        await self._connection.close()


def _parse_headers(raw: bytes) -> dict[str, str]:
    lines = (line.partition(b":") for line in raw.split(b"\r\n")[1:])
    return {name.decode(errors="replace"): value.strip().decode(errors="replace") for name, sep, value in lines if sep}
