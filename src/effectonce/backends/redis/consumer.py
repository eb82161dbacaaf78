"""One consumer of a stream."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from effectonce.backends.common.broker_errors import take_leave
from effectonce.contracts import Delivery, Packet
from effectonce.errors import BrokerUnavailable

from .connection import RedisEndpoint, ReplyError
from .stream import SETTLE, TEND, BrokerWire, Keys, as_text, packet_of, read_headers, to_json

MOVED: Final = 200  # the most delayed messages that one tending moves
SILENT: Final = 3_600_000  # ms after which a consumer that holds nothing is forgotten
FORGET_EVERY: Final = 60.0
#: The part of the ack window within which an ack needs no proof that the delivery is still ours.
SURE: Final = 0.7


class _Held(msgspec.Struct, gc=False):
    """A delivery that this consumer has not settled."""

    id: bytes
    sure_until: float  # until then an ack needs no proof
    ends: float  # then it may be another's


class RedisConsumer:
    """See `contracts.Consumer`. It reads on one connection, where it may wait, and settles on another; acks go out in
    one write with the next read."""

    def __init__(self, endpoint: RedisEndpoint, keys: Keys, *, window: float, prefetch: int) -> None:
        self._keys = keys
        self._prefetch = prefetch
        self._window = window
        self._name = f"{socket.gethostname()[:60]}-{os.getpid()}-{os.urandom(4).hex()}"
        self._reading = BrokerWire(endpoint)
        self._settling = BrokerWire(endpoint)
        self._turn = asyncio.Lock()
        self._held: dict[bytes, _Held] = {}
        self._acks: list[_Held] = []
        self._settled = asyncio.Event()
        self._tend_at = 0.0
        self._forget_at = 0.0
        self._cursor: bytes | str = "0-0"
        self._group = keys.group.encode()
        self._seen: tuple[bytes, dict[str, str]] = (b"", {})

    # -- receiving

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            now = time.monotonic()
            room = min(limit, self._room(now))
            left = max(deadline - now, 0.0)
            if room > 0:
                if now >= self._tend_at:
                    found = await self._tend(room)
                    if found:
                        return found
                found = await self._read(room, min(left, max(self._tend_at - time.monotonic(), 0.001)))
                if found:
                    return found
            elif left:
                await self._freed(left)
            if time.monotonic() >= deadline:
                return []

    def _room(self, now: float) -> int:
        if len(self._held) >= self._prefetch:  # what has lapsed is no longer held, though nobody said so
            self._held = {id: held for id, held in self._held.items() if held.ends > now}
        return self._prefetch - len(self._held)

    async def _freed(self, seconds: float) -> None:
        self._settled.clear()
        try:
            await asyncio.wait_for(self._settled.wait(), min(seconds, self._window))
        except TimeoutError:
            pass

    async def _read(self, room: int, block: float) -> list[Delivery]:
        keys, wire = self._keys, self._reading
        words: list[str | bytes | int] = ["XREADGROUP", "GROUP", keys.group, self._name, "COUNT", room]
        if block > 0:
            words += ["BLOCK", max(round(block * 1000), 1)]
        words += ["STREAMS", keys.stream, ">"]
        command = wire.pack(tuple(words))
        acks = await self._sure_acks()
        try:
            if acks:
                command = wire.pack(("XACK", keys.stream, keys.group, *[held.id for held in acks])) + command
            *acked, reply = await wire.exchange(command, 2 if acks else 1, block)
            for each in acked:
                wire.checked(each)
        except BaseException:
            self._acks = acks + self._acks  # perhaps sent, perhaps not: an ack may be repeated
            raise
        if isinstance(reply, ReplyError) and reply.code == "NOGROUP":  # flushed, or a failover to one without it
            await wire.declare(keys)
            return []
        found = wire.checked(reply)
        return self._deliveries(found[0][1], None) if found else []

    def _deliveries(self, entries: Sequence[Any], counts: Sequence[int] | None) -> list[Delivery]:
        now = time.monotonic()
        sure, ends = now + SURE * self._window, now + self._window
        made, held, queue = [], self._held, self._keys.queue
        for n, entry in enumerate(entries):
            id, fields = entry[0], entry[1]
            mine = _Held(id, sure, ends)
            packet, before = self._packet(fields)
            if packet is None:  # another group's retry
                self._acks.append(mine)
                continue
            held[id] = mine
            attempt = before + (counts[n] if counts else 1)
            made.append(Delivery(packet=packet, queue=queue, attempt=attempt, handle=mine))
        return made

    def _packet(self, fields: list[bytes]) -> tuple[Packet | None, int]:
        """The packet in an entry, and how often it was delivered before it was added; None: not for this group."""
        if len(fields) == 6 and fields[0] == b"body" and fields[2] == b"headers" and fields[4] == b"id":
            return Packet(body=fields[1], headers=self._read_headers(fields[3]), id=as_text(fields[5])), 0
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        if named.get(b"group", self._group) != self._group:
            return None, 0
        attempts = named.get(b"attempts", b"0")
        return packet_of(named), int(attempts) if attempts.isdigit() else 0

    def _read_headers(self, raw: bytes) -> dict[str, str]:
        """Most messages of a queue have the same headers as the one before."""
        if raw != self._seen[0]:
            self._seen = (raw, read_headers(raw))
        return self._seen[1]

    async def _tend(self, room: int) -> list[Delivery]:
        await self.flush()  # or what was acked long ago would be found unsettled
        now = time.monotonic()
        forget = now >= self._forget_at
        silent = str(SILENT if forget else 0)
        window = str(round(self._window * 1000))
        args = [self._keys.group, self._name, window, str(room), self._cursor, str(MOVED), silent]
        try:
            due, cursor, taken = await self._reading.run(TEND, self._keys.names[:2], args)
        except BrokerUnavailable as error:
            if "NOGROUP" not in str(error) and "no such key" not in str(error):
                raise
            await self._reading.declare(self._keys)
            return []
        self._cursor = cursor
        if forget:
            self._forget_at = now + FORGET_EVERY
        pause = min(self._window / 5, 1.0)
        self._tend_at = now + (min(pause, due / 1000) if due >= 0 else pause)
        return self._deliveries(taken, [entry[2] for entry in taken])

    # -- settling

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        now = time.monotonic()
        if any(delivery.handle.sure_until <= now for delivery in deliveries):
            return await self._settle_ours("ack", "", deliveries)
        ours = [self._release(delivery.handle) for delivery in deliveries]
        self._acks += [delivery.handle for delivery, our in zip(deliveries, ours, strict=True) if our]
        return ours

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await self._settle_ours("nack", str(round(delay * 1000)), deliveries)

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        written = to_json({**delivery.packet.headers, **headers})
        (answer,) = await self._settle_ours("dead", written, [delivery])
        return answer

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """For at most the ack window: Redis cannot be told that a delivery will be idle in the future only."""
        kept = min(seconds, self._window)
        mine = [delivery.handle for delivery in deliveries if self._is_ours(delivery.handle)]
        answers = await self._settle("extend", str(round((self._window - kept) * 1000)), mine)
        now = time.monotonic()
        extended = set()
        for held, answer in zip(mine, answers, strict=True):
            if answer:
                extended.add(held.id)
                held.sure_until, held.ends = now + SURE * kept, now + kept
        return [delivery.handle.id in extended and self._is_ours(delivery.handle) for delivery in deliveries]

    def _is_ours(self, mine: _Held) -> bool:
        return self._held.get(mine.id) is mine

    def _release(self, mine: _Held) -> bool:
        """Whether it was ours and unsettled; it is settled now."""
        if not self._is_ours(mine):
            return False
        del self._held[mine.id]
        self._settled.set()
        return True

    async def _settle_ours(self, what: str, argument: str | bytes, deliveries: Sequence[Delivery]) -> list[bool]:
        ours = [self._release(delivery.handle) for delivery in deliveries]
        mine = [delivery.handle for delivery, our in zip(deliveries, ours, strict=True) if our]
        try:
            proven = iter(await self._settle(what, argument, mine))
        except BaseException:
            self._held.update((held.id, held) for held in mine)  # it may be tried again
            raise
        return [our and next(proven) for our in ours]

    async def _settle(self, what: str, argument: str | bytes, mine: Sequence[_Held]) -> list[bool]:
        if not mine:
            return []
        ids = [held.id for held in mine]
        async with self._turn:
            answers = await self._settling.run(
                SETTLE, self._keys.names, [self._keys.group, self._name, what, argument, *ids]
            )
        return [answer == 1 for answer in answers]

    async def _sure_acks(self) -> list[_Held]:
        """The acks that wait; those whose window may be over have been sent, each with a proof."""
        acks, self._acks = self._acks, []
        now = time.monotonic()
        if acks and min(held.sure_until for held in acks) <= now:
            try:
                await self._settle("ack", "", [held for held in acks if held.sure_until <= now])
            except BaseException:
                self._acks = acks + self._acks
                raise
            acks = [held for held in acks if held.sure_until > now]
        return acks

    async def flush(self) -> None:
        acks = await self._sure_acks()
        if not acks:
            return
        keys = self._keys
        try:
            async with self._turn:
                await self._settling.ask("XACK", keys.stream, keys.group, *[held.id for held in acks])
        except BaseException:
            self._acks = acks + self._acks
            raise

    async def close(self) -> None:
        self._reading.close()
        try:
            await take_leave(self._last)
        finally:
            self._held.clear()
            self._tend_at = 0.0
            self._settling.close()

    async def _last(self) -> None:
        await self.flush()
        if self._tend_at:  # it has read
            await self._give_back()

    async def _give_back(self) -> None:
        """All that the group has under our name, known to us or not: a reply may have been lost."""
        keys, start = self._keys, "-"
        async with self._turn:
            while True:
                pending = await self._settling.ask("XPENDING", keys.stream, keys.group, start, "+", 100, self._name)
                if not pending:
                    break
                ids = [entry[0] for entry in pending]
                await self._settling.run(SETTLE, keys.names, [keys.group, self._name, "nack", "0", *ids])
                start = f"({ids[-1].decode()}"
            await self._settling.run(SETTLE, keys.names, [keys.group, self._name, "leave", ""])
            window = str(round(self._window * 1000))
            await self._settling.run(TEND, keys.names[:2], [keys.group, self._name, window, "0", "0-0", "0", "0"])
