"""Queues of BabelQueue on Redis, in its own layout, so that consumers and producers of its SDKs share them.

A queue is a list (``orders``), and an element is an envelope, byte for byte; where there are headers beside it, the
frame that BabelQueue puts around both. What is being processed is in ``orders:processing``, with its deadlines in
``orders:processing:deadlines``; dead letters are in ``orders.dlq``, as envelopes with a ``dead_letter`` block. The
layout has no delay: what we nack with one waits in ``orders:effectonce:delayed``, until a consumer of ours puts it
back. Attempts are counted in the envelope, by those who give a message back.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from effectonce.babelqueue import headers as bindings
from effectonce.backends.common.broker_errors import take_leave
from effectonce.backends.redis.connection import RedisEndpoint, Script, endpoint_at, load_driver
from effectonce.backends.redis.stream import BrokerWire, to_json
from effectonce.contracts import (
    BrokerCapabilities,
    Consumer,
    DeadLetter,
    DeadLetters,
    Delivery,
    Packet,
    Publisher,
)
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, flag

TAKE = Script("list_take", package="effectonce.babelqueue")
SETTLE = Script("list_settle", package="effectonce.babelqueue")

FRAME: Final = "__bq_frame"
#: Headers of ours that no packet shows.
ID: Final = "eo-id"
ORDERING_KEY: Final = "eo-ordering-key"
BINARY: Final = "eo-body"
#: Of a dead letter, why it is one, as the worker says it; and what BabelQueue calls it.
CAUSE: Final = "eo-dead"
REASONS: Final = {"unknown-type": "unknown_urn", "undecodable": "poison", "forged-message": "poison"}
#: Between two looks at a queue that was empty, in seconds: the first, and the longest.
QUICK, SLOW = 0.005, 0.1

CHUNK: Final = 100  # elements of the dead letters that are looked at together


class RedisBabelQueueBackend:
    """``redis+babelqueue://host:6379/0``. Read and write it with the envelope `effectonce.babelqueue.BabelQueue`.

    Options: ``ack_window`` (90 s, as BabelQueue's ``retry_after``); ``tls``; ``timeout`` and ``connect_timeout`` (5 s
    each); ``ca_file``, ``cert_file`` and ``key_file``.
    """

    def __init__(self, address: Address) -> None:
        self.shown = str(address)
        self.window = address.seconds("ack_window", 90.0)
        secure = address.take("tls", flag, False)
        self.endpoint = endpoint_at(address, secure=secure, loses="a whole queue, and its messages would be lost")
        address.done()
        load_driver()
        self.capabilities = BrokerCapabilities(
            name="redis+babelqueue",
            native_dead_letters=True,
            ordering="queue",
            ordered_publish=True,
            ack_window=self.window,
            extends=True,
        )

    def publisher(self) -> Publisher:
        return ListPublisher(self.endpoint)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Consumer:
        return ListConsumer(self.endpoint, require_name(queue), window=self.window, prefetch=prefetch)

    def dead_letters(self, queue: str, *, group: str) -> DeadLetters:
        return ListDeadLetters(self.endpoint, require_name(queue))

    async def declare(self, queue: str, *, group: str) -> None:
        """A list is there as soon as it has an element."""
        require_name(queue)
        wire = BrokerWire(self.endpoint)
        try:
            await wire.ask("LLEN", queue)
        finally:
            wire.close()

    async def check(self, queue: str, *, group: str) -> None:
        await self.declare(queue, group=group)

    async def close(self) -> None:
        return None

    def __repr__(self) -> str:
        return self.shown


# Elements


class _Ours(msgspec.Struct):
    ordering_key: str | None = None


class _Ext(msgspec.Struct):
    effectonce: _Ours | None = None


class _Meta(msgspec.Struct):
    id: str = ""
    ext: _Ext | None = None


class _Envelope(msgspec.Struct):
    meta: _Meta


class _Frame(msgspec.Struct):
    sign: Any = msgspec.field(name=FRAME)
    body: str
    headers: dict[str, str] = msgspec.field(default_factory=dict)


_envelope = msgspec.json.Decoder(_Envelope)
_frame = msgspec.json.Decoder(_Frame)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def element_of(packet: Packet) -> bytes:
    """A packet as an element of the list: an envelope of BabelQueue as it is, others in a frame with what they need."""
    headers = bindings.others(packet.headers) if bindings.is_babelqueue(packet.headers) else dict(packet.headers)
    id, ordering_key = _identity(packet.body)
    if packet.id != id:
        headers[ID] = packet.id
    if packet.ordering_key not in (None, ordering_key):
        headers[ORDERING_KEY] = packet.ordering_key or ""
    return _framed(packet.body, headers)


def _framed(body: bytes, headers: dict[str, str]) -> bytes:
    if not headers and FRAME.encode() not in body:
        return body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text, headers = b2a_base64(body, newline=False).decode(), {**headers, BINARY: "base64"}
    return to_json({FRAME: 1, "headers": headers, "body": text})


def _unframed(element: bytes) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of an element; one without a frame is its own body."""
    if element[:1] == b"{" and FRAME.encode() in element:
        try:
            frame = _frame.decode(element)
            binary = frame.headers.pop(BINARY, "")
            return a2b_base64(frame.body) if binary else frame.body.encode(), frame.headers
        except (msgspec.DecodeError, ValueError):
            pass
    return element, {}


def packet_of(element: bytes) -> Packet:
    body, headers = _unframed(element)
    id, ordering_key = _identity(body)
    id, ordering_key = headers.pop(ID, id), headers.pop(ORDERING_KEY, ordering_key)
    return Packet(body=body, headers=headers, id=id, ordering_key=ordering_key)


def _identity(body: bytes) -> tuple[str, str | None]:
    """The id and the ordering key that an envelope brings with it."""
    try:
        meta = _envelope.decode(body).meta
    except (msgspec.DecodeError, RecursionError):
        return "", None
    ours = meta.ext.effectonce if meta.ext is not None else None
    return meta.id, ours.ordering_key if ours is not None else None


def once_more(element: bytes) -> bytes:
    """The element of a message that is given back: one attempt more, and all else as it is."""
    body, headers = _unframed(element)
    try:
        members: dict[str, Any] = dict(_members.decode(body))
        members["attempts"] = msgspec.json.decode(members["attempts"], type=int) + 1
    except (msgspec.DecodeError, KeyError, RecursionError):
        return element  # no envelope
    return _framed(to_json(members), headers)


class ListPublisher:
    """See `contracts.Publisher`. A batch is one command: all of it is there, or none."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        self._wire = BrokerWire(endpoint)

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        require_name(queue)
        if packets:
            await self._wire.ask("RPUSH", queue, *map(element_of, packets))
        return [None] * len(packets)

    async def close(self) -> None:
        self._wire.close()


class _Held(msgspec.Struct, gc=False):
    """A reservation that this consumer has not settled."""

    token: bytes
    element: bytes
    ends: float


class ListConsumer:
    """See `contracts.Consumer`. It looks again and again: nothing in this layout wakes it."""

    def __init__(self, endpoint: RedisEndpoint, queue: str, *, window: float, prefetch: int) -> None:
        self._queue = queue
        self._window = window
        self._prefetch = prefetch
        processing = f"{queue}:processing"
        self._processing = [processing.encode(), f"{processing}:deadlines".encode()]
        self._delayed = f"{queue}:effectonce:delayed".encode()
        self._wire = BrokerWire(endpoint)
        self._turn = asyncio.Lock()
        self._held: dict[bytes, _Held] = {}

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        pause = QUICK
        while True:
            room = min(limit, self._room())
            found = await self._take(room) if room > 0 else []
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            await asyncio.sleep(min(left, pause))
            pause = min(pause * 2, SLOW)

    def _room(self) -> int:
        if len(self._held) >= self._prefetch:  # what has lapsed is no longer held, though nobody said so
            now = time.monotonic()
            self._held = {token: held for token, held in self._held.items() if held.ends > now}
        return self._prefetch - len(self._held)

    async def _take(self, room: int) -> list[Delivery]:
        keys = [self._queue.encode(), *self._processing, self._delayed]
        ends = time.monotonic() + self._window
        async with self._turn:
            taken = await self._wire.run(TAKE, keys, [str(self._window), str(room), os.urandom(16)])
        found = []
        for token, element in taken:
            held = self._held[token] = _Held(token, element, ends)
            found.append(Delivery(packet=packet_of(element), queue=self._queue, handle=held))
        return found

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return await self._settle("ack", "", b"", deliveries)

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        news = [once_more(delivery.handle.element) for delivery in deliveries]
        if delay > 0:
            return await self._settle("delay", str(delay), self._delayed, deliveries, news)
        return await self._settle("push", "", self._queue.encode(), deliveries, news)

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        record = record_of(delivery.packet, headers, self._queue)
        (answer,) = await self._settle("push", "", dead_of(self._queue), [delivery], [record])
        return answer

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        answers = await self._settle("extend", str(seconds), b"", deliveries)
        ends = time.monotonic() + seconds
        for delivery, answer in zip(deliveries, answers, strict=True):
            if answer:
                delivery.handle.ends = ends
        return answers

    async def _settle(
        self, what: str, argument: str, target: bytes, deliveries: Sequence[Delivery], news: Sequence[bytes] = ()
    ) -> list[bool]:
        """What the script says of each that is ours; False of all others."""
        ours = [self._held.get(delivery.handle.token) is delivery.handle for delivery in deliveries]
        args: list[Any] = [what, argument]
        for n, delivery in enumerate(deliveries):
            if ours[n]:
                args += [delivery.handle.token, delivery.handle.element, news[n] if news else b""]
        if len(args) == 2:
            return ours
        async with self._turn:
            proven = iter(await self._wire.run(SETTLE, [*self._processing, target], args))
        if what != "extend":
            for delivery in deliveries:
                self._held.pop(delivery.handle.token, None)
        return [our and next(proven) == 1 for our in ours]

    async def flush(self) -> None:
        return None

    async def close(self) -> None:
        try:
            await take_leave(self._give_back)
        finally:
            self._held.clear()
            self._wire.close()

    async def _give_back(self) -> None:
        """As they are: nobody has tried them."""
        held = [Delivery(packet=Packet(body=b""), queue=self._queue, handle=each) for each in self._held.values()]
        await self._settle("push", "", self._queue.encode(), held, [delivery.handle.element for delivery in held])


# Dead letters


def dead_of(queue: str) -> bytes:
    return f"{queue}.dlq".encode()


def record_of(packet: Packet, headers: Mapping[str, str], queue: str) -> bytes:
    """A dead letter as BabelQueue has it. What else the packet had is in the block, under ``effectonce``."""
    try:
        cause = msgspec.json.decode(headers.get(CAUSE, "{}"), type=dict[str, Any])
    except msgspec.DecodeError:
        cause = {}
    beside = {"headers": {**packet.headers, **headers}, "id": packet.id, "key": packet.ordering_key}
    block = {
        "reason": REASONS.get(str(cause.get("why")), "failed"),
        "error": cause.get("text"),
        "exception": cause.get("error"),
        "failed_at": time.time_ns() // 1_000_000,
        "original_queue": queue,
        "attempts": cause.get("attempts", 0),
        "lang": "python",
        "effectonce": beside,
    }
    return bindings.dead_letter_record(packet.body, block)


class ListDeadLetters:
    """See `contracts.DeadLetters`. An id is the SHA-1 of an element; after one that is gone meanwhile, the next page
    begins again with the oldest."""

    def __init__(self, endpoint: RedisEndpoint, queue: str) -> None:
        self._queue = queue
        self._key = dead_of(queue)
        self._wire = BrokerWire(endpoint)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        start = await self._after(cursor) if cursor else 0
        elements = await self._wire.ask("LRANGE", self._key, start, start + limit)
        page = [self._letter(element) for element in elements[:limit]]
        return page, f"{start + limit}:{page[-1].id}" if len(elements) > limit else None

    async def _after(self, cursor: str) -> int:
        """Where the page after an element begins. Elements only leave, so that it has not moved to the right."""
        at, _, id = cursor.partition(":")
        end = int(at)
        while end > 0:
            start = max(end - CHUNK, 0)
            elements: list[bytes] = await self._wire.ask("LRANGE", self._key, start, end - 1)
            for n in range(len(elements), 0, -1):
                if _id_of(elements[n - 1]) == id:
                    return start + n
            end = start
        return 0

    def _letter(self, element: bytes) -> DeadLetter:
        record, framed = _unframed(element)
        body, block = bindings.original_body(record)
        beside = block.pop("effectonce", None)
        if isinstance(beside, dict):
            packet = Packet(body=body, headers=beside["headers"], id=beside["id"], ordering_key=beside["key"])
        else:  # another SDK has given it up
            id, key = _identity(body)
            said = {"why": block.get("reason"), "text": block.get("error"), "error": block.get("exception")}
            cause = {name: value for name, value in said.items() if value} | {"attempts": block.get("attempts", 0)}
            headers = {**framed, CAUSE: to_json(cause).decode()} if block else framed
            packet = Packet(body=body, headers=headers, id=id, ordering_key=key)
        return DeadLetter(id=_id_of(element), packet=packet, queue=self._queue)

    async def remove(self, ids: Sequence[str]) -> int:
        found: list[bytes] = []
        wanted, start = set(ids), 0
        while wanted:
            elements = await self._wire.ask("LRANGE", self._key, start, start + CHUNK - 1)
            if not elements:
                break
            for element in elements:
                if _id_of(element) in wanted:
                    wanted.discard(_id_of(element))
                    found.append(element)
            start += CHUNK
        removed = 0
        for element in found:
            removed += int(await self._wire.ask("LREM", self._key, 1, element))
        return removed

    async def count(self) -> int:
        length: int = await self._wire.ask("LLEN", self._key)
        return length

    async def close(self) -> None:
        self._wire.close()


def _id_of(element: bytes) -> str:
    return hashlib.sha1(element, usedforsecurity=False).hexdigest()
