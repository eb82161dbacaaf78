"""One consumer of a stream, in a consumer group.

A delivery belongs to the consumer until it has been idle for the ack window; then another consumer of the group may
claim it. An ack early in the window is a plain XACK, which needs no proof; a late one goes through the settling script,
which checks that the entry is still pending under our name.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from effectonce.backends.common.visibility_timeout import HeldDelivery, UnsettledDeliveries, give_back_unsettled
from effectonce.contracts import Delivery, Packet
from effectonce.errors import BrokerUnavailable

from .connection import RedisEndpoint, ReplyError
from .stream import (
    SETTLE,
    TEND,
    RedisBrokerConnection,
    StreamKeys,
    as_text,
    packet_of,
    read_headers,
    tend_arguments,
    to_json,
)

#: The most delayed messages that one run of the tending script moves back to the stream.
MAX_MOVED: Final = 200
#: A consumer that holds nothing is removed from the group after it has been silent for so long.
FORGET_SILENT_AFTER_MS: Final = 3_600_000
FORGET_INTERVAL_S: Final = 60.0
#: The part of the ack window within which an ack needs no proof that the delivery is still ours.
UNPROVEN_ACK_PART: Final = 0.7
MAX_TEND_INTERVAL_S: Final = 1.0


class StreamDelivery(HeldDelivery):
    """The key is the entry's id."""

    unproven_ack_until: float  # until then an ack needs no proof


class RedisConsumer:
    """See `contracts.Consumer`.

    It reads on one connection, where the server may block, and settles on another; acks go out in one write with the
    next read.
    """

    def __init__(self, endpoint: RedisEndpoint, keys: StreamKeys, *, window: float, prefetch: int) -> None:
        self._keys = keys
        self._window = window
        self._name = f"{socket.gethostname()[:60]}-{os.getpid()}-{os.urandom(4).hex()}"
        self._reading = RedisBrokerConnection(endpoint)
        self._settling = RedisBrokerConnection(endpoint)
        self._settling_lock = asyncio.Lock()
        self._unsettled: UnsettledDeliveries[StreamDelivery] = UnsettledDeliveries(prefetch)
        self._acks: list[StreamDelivery] = []  # not yet sent
        self._tend_at = 0.0
        self._forget_at = 0.0
        self._claim_cursor: bytes | str = "0-0"
        self._group = keys.group.encode()
        self._last_headers: tuple[bytes, dict[str, str]] = (b"", {})

    # -- receiving

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            now = time.monotonic()
            room = min(limit, self._unsettled.room())
            left = max(deadline - now, 0.0)
            if room > 0:
                if now >= self._tend_at and (deliveries := await self._tend(room)):
                    return deliveries
                until_tending = max(self._tend_at - time.monotonic(), 0.001)
                if deliveries := await self._read(room, min(left, until_tending)):
                    return deliveries
            elif left:
                await self._unsettled.wait_for_room(left)
            if time.monotonic() >= deadline:
                return []

    async def _read(self, room: int, block: float) -> list[Delivery]:
        """Send the acks that wait, and read new entries; the server blocks for up to ``block`` seconds."""
        keys, connection = self._keys, self._reading
        words: list[str | bytes | int] = ["XREADGROUP", "GROUP", keys.group, self._name, "COUNT", room]
        if block > 0:
            words += ["BLOCK", max(round(block * 1000), 1)]
        words += ["STREAMS", keys.stream, ">"]
        command = connection.pack(tuple(words))
        acks = await self._take_unproven_acks()
        try:
            if acks:
                command = connection.pack(("XACK", keys.stream, keys.group, *[held.key for held in acks])) + command
            *ack_replies, reply = await connection.exchange(command, 2 if acks else 1, block)
            for ack_reply in ack_replies:
                connection.check(ack_reply)
        except BaseException:
            self._acks = acks + self._acks  # sent or not: an ack may be repeated
            raise
        if isinstance(reply, ReplyError) and reply.code == "NOGROUP":  # flushed, or a failover to a server without it
            await connection.declare_group(keys)
            return []
        streams = connection.check(reply)
        return self._make_deliveries(streams[0][1], None) if streams else []

    def _make_deliveries(self, entries: Sequence[Any], counts: Sequence[int] | None) -> list[Delivery]:
        now = time.monotonic()
        unproven_until, ends_at = now + UNPROVEN_ACK_PART * self._window, now + self._window
        deliveries = []
        for index, entry in enumerate(entries):
            held = StreamDelivery(entry[0], ends_at, unproven_until)
            packet, before = self._read_entry(entry[1])
            if packet is None:  # another group's retry
                self._acks.append(held)
                continue
            self._unsettled.add(held)
            attempt = before + (counts[index] if counts else 1)
            deliveries.append(Delivery(packet=packet, queue=self._keys.queue, attempt=attempt, handle=held))
        return deliveries

    def _read_entry(self, fields: list[bytes]) -> tuple[Packet | None, int]:
        """The packet in an entry, and how often it was delivered before it was added; None: not for this group."""
        if len(fields) == 6 and fields[0] == b"body" and fields[2] == b"headers" and fields[4] == b"id":
            return Packet(body=fields[1], headers=self._read_headers(fields[3]), id=as_text(fields[5])), 0
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        if named.get(b"group", self._group) != self._group:
            return None, 0
        attempts = named.get(b"attempts", b"0")
        return packet_of(named), int(attempts) if attempts.isdigit() else 0

    def _read_headers(self, raw: bytes) -> dict[str, str]:
        """The headers in ``raw``. Most messages of a queue have the same headers as the one before: these are kept."""
        if raw != self._last_headers[0]:
            self._last_headers = (raw, read_headers(raw))
        return self._last_headers[1]

    async def _tend(self, room: int) -> list[Delivery]:
        """Move delayed messages that are due, and take over up to ``room`` deliveries that have timed out."""
        await self.flush()  # else it would take over deliveries that were acked here
        now = time.monotonic()
        forget = now >= self._forget_at
        args = tend_arguments(
            self._keys.group,
            self._name,
            window_ms=round(self._window * 1000),
            limit=room,
            cursor=self._claim_cursor,
            max_moved=MAX_MOVED,
            forget_after_ms=FORGET_SILENT_AFTER_MS if forget else 0,
        )
        try:
            next_due_ms, self._claim_cursor, taken = await self._reading.run(TEND, self._keys.names[:2], args)
        except BrokerUnavailable as error:
            if "NOGROUP" not in str(error) and "no such key" not in str(error):
                raise
            await self._reading.declare_group(self._keys)
            return []
        if forget:
            self._forget_at = now + FORGET_INTERVAL_S
        interval = min(self._window / 5, MAX_TEND_INTERVAL_S)
        if next_due_ms >= 0:
            interval = min(interval, next_due_ms / 1000)
        self._tend_at = now + interval
        return self._make_deliveries(taken, [entry[2] for entry in taken])

    # -- settling

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        now = time.monotonic()
        if any(delivery.handle.unproven_ack_until <= now for delivery in deliveries):
            return await self._settle("ack", "", deliveries)
        released = [self._unsettled.release(delivery.handle) for delivery in deliveries]
        self._acks += [delivery.handle for delivery, was_held in zip(deliveries, released, strict=True) if was_held]
        return released

    def buffer_acks(self, deliveries: Sequence[Delivery]) -> None:
        """See `contracts.AckBuffer`."""
        for delivery in deliveries:
            if self._unsettled.release(delivery.handle):
                self._acks.append(delivery.handle)

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await self._settle("nack", str(round(delay * 1000)), deliveries)

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        all_headers = to_json({**delivery.packet.headers, **headers})
        (answer,) = await self._settle("dead", all_headers, [delivery])
        return answer

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """See `contracts.Consumer`. At most by the ack window: Redis cannot set an idle time below zero."""
        kept = min(seconds, self._window)
        held = [delivery.handle for delivery in deliveries if self._unsettled.holds(delivery.handle)]
        answers = await self._run_settle("extend", str(round((self._window - kept) * 1000)), held)
        now = time.monotonic()
        extended = {delivery for delivery, is_ours in zip(held, answers, strict=True) if is_ours}
        for delivery in extended:
            delivery.unproven_ack_until, delivery.ends_at = now + UNPROVEN_ACK_PART * kept, now + kept
        return [delivery.handle in extended and self._unsettled.holds(delivery.handle) for delivery in deliveries]

    async def _settle(self, verb: str, argument: str | bytes, deliveries: Sequence[Delivery]) -> list[bool]:
        """Run the settling script for every delivery that is unsettled. Returns which ones were still ours."""
        released = [self._unsettled.release(delivery.handle) for delivery in deliveries]
        held = [delivery.handle for delivery, was_held in zip(deliveries, released, strict=True) if was_held]
        try:
            applied = iter(await self._run_settle(verb, argument, held))
        except BaseException:
            self._unsettled.restore(held)  # the caller may try again
            raise
        return [was_held and next(applied) for was_held in released]

    async def _run_settle(self, verb: str, argument: str | bytes, held: Sequence[StreamDelivery]) -> list[bool]:
        if not held:
            return []
        ids = [delivery.key for delivery in held]
        async with self._settling_lock:
            answers = await self._settling.run(
                SETTLE, self._keys.names, [self._keys.group, self._name, verb, argument, *ids]
            )
        return [answer == 1 for answer in answers]

    async def _take_unproven_acks(self) -> list[StreamDelivery]:
        """The waiting acks that need no proof, for the caller to send. The others are sent here, by the script."""
        acks, self._acks = self._acks, []
        now = time.monotonic()
        late = [held for held in acks if held.unproven_ack_until <= now]
        if late:
            try:
                await self._run_settle("ack", "", late)
            except BaseException:
                self._acks = acks + self._acks
                raise
        return [held for held in acks if held.unproven_ack_until > now]

    async def flush(self) -> None:
        acks = await self._take_unproven_acks()
        if not acks:
            return
        keys = self._keys
        try:
            async with self._settling_lock:
                await self._settling.call("XACK", keys.stream, keys.group, *[held.key for held in acks])
        except BaseException:
            self._acks = acks + self._acks
            raise

    async def close(self) -> None:
        self._reading.close()
        try:
            await give_back_unsettled(self._flush_and_give_back)
        finally:
            self._unsettled.release_all()
            self._tend_at = 0.0
            self._settling.close()

    async def _flush_and_give_back(self) -> None:
        await self.flush()
        if self._tend_at:  # else it has never read
            await self._give_back()

    async def _give_back(self) -> None:
        """Give back all that is pending under our name, known to us or not: a reply may have been lost."""
        keys, start = self._keys, "-"
        async with self._settling_lock:
            while True:
                pending = await self._settling.call("XPENDING", keys.stream, keys.group, start, "+", 100, self._name)
                if not pending:
                    break
                ids = [entry[0] for entry in pending]
                await self._settling.run(SETTLE, keys.names, [keys.group, self._name, "nack", "0", *ids])
                start = f"({ids[-1].decode()}"
            await self._settling.run(SETTLE, keys.names, [keys.group, self._name, "leave", ""])
            args = tend_arguments(keys.group, self._name, window_ms=round(self._window * 1000))
            await self._settling.run(TEND, keys.names[:2], args)
