"""The streams behind one queue: itself, and its dead letters.

A queue is a work-queue stream: what is acked is gone, and what nobody has taken stays, whether or not a consumer is
there yet. Such a stream has one group of consumers. With ``retention=limits`` it keeps every message for ``max_age``
and each group has all of them; it is not known then who still needs a message, so the server drops no duplicates.

The server writes a message to its file before it answers, and flushes the file later: what was confirmed survives the
death of the server, and a power cut only with replicas or ``sync_interval: always``.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from effectonce.backends.common.reconnecting import Link
from effectonce.contracts import DeadLetter
from effectonce.errors import ConfigurationError, InvalidOption, show
from effectonce.values.queue_names import require_name

from .connection import Endpoint, Line, Refused
from .packets import packet_of

Retention = Literal["workqueue", "limits"]

NO_MESSAGE: Final = 10037
_SECOND: Final = 1_000_000_000  # ns


class MissingStream(ConfigurationError):
    """There is no stream for a queue, or no group of consumers."""


class Streams(Struct, frozen=True, kw_only=True):
    """How the streams of one broker are named and made."""

    endpoint: Endpoint
    retention: Retention
    window: float
    dedup_window: float
    max_age: float
    replicas: int
    given: str = ""  # the stream that others have made for all queues

    @property
    def deduplicates(self) -> bool:
        """Whether the server is told ids: where a message that it has seen is surely one that still waits, or gone."""
        return self.retention == "workqueue" and not self.given

    def name(self, queue: str) -> str:
        return self.given or _encoded(queue)

    def dead_name(self, queue: str, group: str) -> str:
        """Dead letters are the group's, where there can be several."""
        return _encoded(f"{queue}.dead.{group}" if self.retention == "limits" else f"{queue}.dead")

    def dead_subject(self, queue: str, group: str) -> str:
        return f"eo.dead.{self.dead_name(queue, group)}"

    async def declare(self, line: Line, queue: str, group: str | None) -> None:
        """The queue's stream, and with ``group`` the dead letters and consumers of that."""
        name = self.name(queue)
        config: dict[str, Any] = {
            "name": name,
            "subjects": [queue],
            "retention": self.retention,
            "duplicate_window": round(self.dedup_window * _SECOND),
        }
        if self.retention == "limits":
            config["max_age"] = round(self.max_age * _SECOND)
        if self.given:
            await self._info(line, name, queue)
        else:
            self._require_retention(await self._made(line, config))
        if group is None:
            return
        await self.declare_dead(line, queue, group)
        consumer = {
            "durable_name": _encoded(group),
            "filter_subject": queue,
            "ack_policy": "explicit",
            "ack_wait": round(self.window * _SECOND),
            "deliver_policy": "all",
            "max_deliver": -1,
            "max_ack_pending": -1,
        }
        try:
            path = f"CONSUMER.DURABLE.CREATE.{name}.{_encoded(group)}"
            await line.api(path, {"stream_name": name, "config": consumer})
        except Refused as error:
            raise ConfigurationError(
                f"the group {show(group)} cannot be made for {show(queue)} ({error}); a work queue has one group of "
                "consumers: use its name, or retention=limits, or delete the old one (nats consumer rm)"
            ) from error

    async def declare_dead(self, line: Line, queue: str, group: str) -> None:
        subject = self.dead_subject(queue, group)
        await self._made(line, {"name": self.dead_name(queue, group), "subjects": [subject], "retention": "limits"})

    async def _made(self, line: Line, config: dict[str, Any]) -> dict[str, Any]:
        """The stream's settings; made where it is missing. One that is full refuses messages, and drops none."""
        full = {**config, "storage": "file", "discard": "new", "num_replicas": self.replicas}
        try:
            found = (await line.api(f"STREAM.INFO.{config['name']}"))["config"]
        except Refused as error:
            if error.status != 404:
                raise
            found = (await line.api(f"STREAM.CREATE.{config['name']}", full))["config"]
        return dict(found)

    def _require_retention(self, config: dict[str, Any]) -> None:
        if config["retention"] != self.retention:
            raise ConfigurationError(
                f"the stream {show(config['name'])} has retention {config['retention']}, and the URL says "
                f"retention={self.retention}; correct the URL, or name another stream with stream="
            )

    async def check(self, line: Line, queue: str, group: str) -> None:
        name = self.name(queue)
        config = await self._info(line, name, queue)
        await self._info(line, self.dead_name(queue, group), queue)
        if not self.given:
            self._require_retention(config)
        limited = config.get("discard") != "new" and max(config.get("max_msgs", -1), config.get("max_bytes", -1)) > 0
        if config["retention"] == "workqueue" and (limited or config.get("max_age", 0) > 0):
            raise ConfigurationError(
                f"the stream {show(name)} has limits, and drops messages that nobody has handled; set discard=new, "
                "and no max_age"
            )
        if config["storage"] != "file":
            raise ConfigurationError(
                f"the stream {show(name)} is kept in memory, and a restart of its server would lose it; make it again "
                "with storage=file"
            )
        try:
            consumer = (await line.api(f"CONSUMER.INFO.{name}.{_encoded(group)}"))["config"]
        except Refused as error:
            raise missing(self.endpoint, queue) from error
        if consumer.get("ack_policy") != "explicit" or consumer.get("max_deliver", -1) != -1:
            raise ConfigurationError(
                f"the consumer {show(group)} of {show(name)} has ack_policy {consumer.get('ack_policy')} and "
                f"max_deliver {consumer.get('max_deliver')}: it would lose messages; it needs explicit and -1"
            )

    async def _info(self, line: Line, name: str, queue: str) -> dict[str, Any]:
        try:
            return dict((await line.api(f"STREAM.INFO.{name}"))["config"])
        except Refused as error:
            if error.status != 404:
                raise
            raise missing(self.endpoint, queue) from error


def missing(endpoint: Endpoint, queue: str) -> MissingStream:
    return MissingStream(
        f"{endpoint.shown} has no stream or no consumers for {show(queue)}; start its worker, or declare it: "
        f"connect_broker(url).declare({show(queue)!r})"
    )


def subject_of(queue: str) -> str:
    """The queue's name, where it can be a subject."""
    if "" in require_name(queue).split("."):
        raise InvalidOption(f"{show(queue)!r} cannot be a queue on NATS: a dot stands between two words there")
    return queue


def consumer_name(group: str) -> str:
    return _encoded(group)


def _encoded(name: str) -> str:
    """``name`` as streams and consumers can have it: different names stay different."""
    plain = re.sub(r"[^A-Za-z0-9_-]", lambda found: f"={ord(found[0]):02X}", name)
    return plain if len(plain) <= 200 else f"{plain[:160]}=={hashlib.sha256(name.encode()).hexdigest()[:32]}"


class NatsDeadLetters:
    """See `contracts.DeadLetters`. A letter's id is its number in the stream; looking takes nothing away."""

    def __init__(self, streams: Streams, queue: str, group: str) -> None:
        self._streams = streams
        self._queue = queue
        self._name = streams.dead_name(queue, group)
        self._subject = streams.dead_subject(queue, group)
        self._link = Link(lambda: Line.open(streams.endpoint, "effectonce dead letters"))

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        line = await self._link.connection()
        page: list[DeadLetter] = []
        after = int(cursor) if cursor else 0
        while len(page) <= limit:
            found = await self._next(line, after + 1)
            if found is None:
                return page, None
            after = int(found["seq"])
            headers = _parsed(b64decode(found.get("hdrs", "")))
            packet = packet_of(headers, b64decode(found.get("data", "")))
            page.append(DeadLetter(id=str(after), packet=packet, queue=self._queue))
        return page[:limit], page[limit - 1].id

    async def _next(self, line: Line, number: int) -> dict[str, Any] | None:
        try:
            answer = await line.api(f"STREAM.MSG.GET.{self._name}", {"seq": number, "next_by_subj": self._subject})
        except Refused as error:
            if error.number == NO_MESSAGE:
                return None
            raise self._translated(error) from error
        return dict(answer["message"])

    async def remove(self, ids: Sequence[str]) -> int:
        line = await self._link.connection()
        removed = 0
        for number in dict.fromkeys(ids):
            if number.isdigit():
                try:
                    await line.api(f"STREAM.MSG.DELETE.{self._name}", {"seq": int(number), "no_erase": True})
                    removed += 1
                except Refused as error:
                    if error.status != 404 and error.number not in (NO_MESSAGE, 10043, 10057):
                        raise
        return removed

    async def count(self) -> int:
        line = await self._link.connection()
        try:
            return int((await line.api(f"STREAM.INFO.{self._name}"))["state"]["messages"])
        except Refused as error:
            raise self._translated(error) from error

    def _translated(self, error: Refused) -> ConfigurationError:
        return missing(self._streams.endpoint, self._queue) if error.status == 404 else error

    async def close(self) -> None:
        await self._link.close()


def _parsed(raw: bytes) -> dict[str, str]:
    lines = (line.partition(b":") for line in raw.split(b"\r\n")[1:])
    return {name.decode(errors="replace"): value.strip().decode(errors="replace") for name, sep, value in lines if sep}
