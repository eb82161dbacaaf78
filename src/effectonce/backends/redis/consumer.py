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
from effectonce.contracts import Delivery

from .broker_connection import open_connection
from .connection import Word
from .endpoint import RedisEndpoint
from .errors import MissingGroup
from .stream import MAINTAIN_SCRIPT, SETTLE_SCRIPT, StreamKeys, declare_group, read_packet, to_json

#: The most delayed messages that one run of the maintenance script moves back to the stream.
MAX_MOVED: Final = 200
#: A consumer that holds nothing is removed from the group after it has been silent for so long.
FORGET_SILENT_AFTER_MS: Final = 3_600_000
FORGET_INTERVAL_S: Final = 60.0
#: The part of the ack window within which an ack needs no proof that the delivery is still ours. The window is counted
#: from the server's reply, and the ack still has to travel there: the rest of the window is the margin for both.
UNPROVEN_ACK_PART: Final = 0.7
MAX_MAINTENANCE_INTERVAL_S: Final = 1.0


class StreamDelivery(HeldDelivery, gc=False):
    """A `HeldDelivery` whose key is the id of the entry."""

    needs_proof_at: float  # from then on an ack must prove that the delivery is still ours


class RedisConsumer:
    """See `contracts.Consumer`.

    It reads on one connection, where the server may block, and settles on another; acks go out in one write with the
    next read, unless `flush` comes first.
    """

    def __init__(self, endpoint: RedisEndpoint, keys: StreamKeys, *, window: float, prefetch: int) -> None:
        self._keys = keys
        self._window = window
        self._name = f"{socket.gethostname()[:60]}-{os.getpid()}-{os.urandom(4).hex()}"
        self._reading = open_connection(endpoint).of_queue(keys.stream)
        self._settling = open_connection(endpoint).of_queue(keys.stream)
        self._settling_lock = asyncio.Lock()
        self._unsettled: UnsettledDeliveries[StreamDelivery] = UnsettledDeliveries(prefetch)
        self._acks: dict[bytes, float] = {}  # not yet sent: ids of entries, each with its `needs_proof_at`
        self._maintain_at = 0.0  # 0: this consumer has not read yet
        self._forget_at = 0.0
        self._claim_cursor: bytes | str = "0-0"
        self._group = keys.group.encode()

    # -- receiving

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            now = time.monotonic()
            left = max(deadline - now, 0.0)
            room = min(limit, self._unsettled.room())
            entries: Sequence[Any] = ()
            if room > 0:
                try:
                    if now >= self._maintain_at:
                        entries = await self.maintain(room)
                    if not entries:
                        entries = await self._read(room, min(left, max(self._maintain_at - time.monotonic(), 0.001)))
                except MissingGroup:
                    await declare_group(self._reading, self._keys)
                    continue
            elif left:
                await self._unsettled.wait_for_room(left)
            deliveries = self._make_deliveries(entries)
            if deliveries or time.monotonic() >= deadline:
                return deliveries

    async def _read(self, room: int, block: float) -> Sequence[Any]:
        """Read up to ``room`` new entries; the server waits for one for ``block`` seconds. Sends the acks in the same
        write."""
        keys = self._keys
        if self._acks and time.monotonic() >= min(self._acks.values()):
            await self.flush()
        acks, self._acks = self._acks, {}
        commands: list[tuple[Word, ...]] = [("XACK", keys.stream, keys.group, *acks)] if acks else []
        blocking = ("BLOCK", max(round(block * 1000), 1)) if block > 0 else ()
        source = ("STREAMS", keys.stream, ">")
        commands.append(("XREADGROUP", "GROUP", keys.group, self._name, "COUNT", room, *blocking, *source))
        try:
            *_, streams = await self._reading.exchange(*commands, block=block)
        except BaseException:
            self._acks = acks | self._acks  # perhaps they were sent; an ack may be repeated
            raise
        entries: Sequence[Any] = streams[0][1] if streams else ()
        return entries

    async def maintain(self, room: int) -> Sequence[Any]:
        """Move delayed messages that are due back to the stream, trim it, and take over up to ``room`` entries whose
        deliveries have timed out. Returns these."""
        await self.flush()  # else it would take over deliveries whose acks wait here
        now = time.monotonic()
        forget = now >= self._forget_at
        args = (
            self._keys.group,
            self._name,
            round(self._window * 1000),
            room,
            self._claim_cursor,
            MAX_MOVED,
            FORGET_SILENT_AFTER_MS if forget else 0,
        )
        entries: Sequence[Any]
        next_due_ms, self._claim_cursor, entries = await self._reading.batch(
            MAINTAIN_SCRIPT, self._keys.maintained, args
        )
        if forget:
            self._forget_at = now + FORGET_INTERVAL_S
        interval = min(self._window / 5, MAX_MAINTENANCE_INTERVAL_S)
        if next_due_ms >= 0:
            interval = min(interval, next_due_ms / 1000)
        self._maintain_at = now + interval
        return entries

    def _make_deliveries(self, entries: Sequence[Any]) -> list[Delivery]:
        """Make deliveries of entries. Each entry is its id, its fields and, where it was taken over, how often its
        group has delivered it."""
        now = time.monotonic()
        ends_at, needs_proof_at = now + self._window, now + UNPROVEN_ACK_PART * self._window
        deliveries = []
        for id, fields, *count in entries:
            held = StreamDelivery(id, ends_at, needs_proof_at)
            named = {fields[n]: fields[n + 1] for n in range(0, len(fields), 2)}
            if named.get(b"group", self._group) != self._group:  # another group has nacked it: no message for ours
                self._acks[id] = held.needs_proof_at
                continue
            attempt = count[0] if count else 1
            if b"attempts" in named:  # attempts before the entry was added again
                attempt += int(named[b"attempts"]) if named[b"attempts"].isdigit() else 0
            packet = read_packet(named)
            deliveries.append(Delivery(packet=packet, queue=self._keys.queue, attempt=attempt, handle=held))
            self._unsettled.add(held)
        return deliveries

    # -- settling

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        now = time.monotonic()
        for delivery in deliveries:
            if delivery.handle.needs_proof_at <= now:
                return await self._settle("ack", "", deliveries)
        held = [self._unsettled.holds(delivery.handle) for delivery in deliveries]
        self.buffer_acks(deliveries)
        return held

    def buffer_acks(self, deliveries: Sequence[Delivery]) -> None:
        """See `contracts.AckBuffer`."""
        for delivery in deliveries:
            if self._unsettled.release(delivery.handle):
                self._acks[delivery.handle.key] = delivery.handle.needs_proof_at

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await self._settle("nack", round(delay * 1000), deliveries)

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        all_headers = to_json({**delivery.packet.headers, **headers})
        (answer,) = await self._settle("dead", all_headers, [delivery])
        return answer

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """See `contracts.Consumer`. At most by the ack window: Redis cannot set an idle time below zero."""
        kept = min(seconds, self._window)
        idle_ms = round((self._window - kept) * 1000)
        extended = await self._unsettled.extend(
            deliveries, lambda held: self._run_settle("extend", idle_ms, [delivery.key for delivery in held])
        )
        now = time.monotonic()
        for delivery, is_ours in zip(deliveries, extended, strict=True):
            if is_ours:
                delivery.handle.needs_proof_at, delivery.handle.ends_at = now + UNPROVEN_ACK_PART * kept, now + kept
        return [is_ours and self._unsettled.holds(d.handle) for d, is_ours in zip(deliveries, extended, strict=True)]

    async def _settle(self, verb: str, argument: Word, deliveries: Sequence[Delivery]) -> list[bool]:
        """Run the settling script for every delivery that is unsettled. Returns which ones were still ours."""
        return await self._unsettled.settle(
            deliveries, lambda held: self._run_settle(verb, argument, [delivery.key for delivery in held])
        )

    async def _run_settle(self, verb: str, argument: Word, ids: Sequence[bytes]) -> list[bool]:
        if not ids:
            return []
        async with self._settling_lock:
            args = (self._keys.group, self._name, verb, argument, *ids)
            answers = await self._settling.batch(SETTLE_SCRIPT, self._keys.settled, args)
        return [answer == 1 for answer in answers]

    async def flush(self) -> None:
        acks, self._acks = self._acks, {}
        if not acks:
            return
        try:
            if time.monotonic() >= min(acks.values()):
                await self._run_settle("ack", "", list(acks))
            else:
                async with self._settling_lock:
                    await self._settling.exchange(("XACK", self._keys.stream, self._keys.group, *acks))
        except BaseException:
            self._acks = acks | self._acks
            raise

    async def close(self) -> None:
        await self._reading.close()
        try:
            await give_back_unsettled(self._give_back)
        finally:
            self._unsettled.release_all()
            self._maintain_at = 0.0
            await self._reading.close()
            await self._settling.close()

    async def _give_back(self) -> None:
        await self.flush()
        if self._maintain_at:  # else it has never read
            async with self._settling_lock:
                await self._settling.batch(
                    SETTLE_SCRIPT, self._keys.settled, (self._keys.group, self._name, "leave", "")
                )
            await self.maintain(0)
