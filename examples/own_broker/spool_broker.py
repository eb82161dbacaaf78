"""A broker made of folders. A message is a file, and to move it is to rename it: of those who try at once, one does.

queue/new/    TIME.ATTEMPT.ID     to be delivered, not before TIME (microseconds)
queue/held/   UNTIL.ATTEMPT.ID    with a consumer, until its ack window ends; then anybody takes it back
queue/dead/   TIME.0.ID           given up
"""

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import msgpack, structs

from effectonce.contracts import BrokerCapabilities, DeadLetter, Delivery, Packet
from effectonce.errors import PayloadTooLarge
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address

MAX_BODY = 16 * 1024 * 1024


class SpoolBackend:
    """``spool:///var/spool/shop``. Option: ``ack_window`` (30 s)."""

    def __init__(self, address: Address) -> None:
        self.window = address.seconds("ack_window", 30.0)
        address.done()  # refuses options that do not exist
        self.root = Path(address.path)
        self.capabilities = BrokerCapabilities(
            name="spool", native_delay=True, native_dead_letters=True, ack_window=self.window, extends=True,
            counts_attempts=True, max_body=MAX_BODY,
        )  # fmt: skip

    def publisher(self) -> "SpoolPublisher":
        return SpoolPublisher(self)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> "SpoolConsumer":
        return SpoolConsumer(self, queue, prefetch)

    def dead_letters(self, queue: str, *, group: str) -> "SpoolDeadLetters":
        return SpoolDeadLetters(self, queue)

    async def declare(self, queue: str, *, group: str) -> None:
        Spool(self, queue)

    async def check(self, queue: str, *, group: str) -> None:
        Spool(self, queue)

    async def close(self) -> None: ...

    def __repr__(self) -> str:
        return f"spool://{self.root}"


class Spool:
    """The folders of one queue."""

    def __init__(self, backend: SpoolBackend, queue: str) -> None:
        folder = backend.root / require_name(queue)
        self.new, self.held, self.dead = folder / "new", folder / "held", folder / "dead"
        for each in (self.new, self.held, self.dead):
            each.mkdir(parents=True, exist_ok=True)

    def take(self, limit: int, window: float) -> list[Delivery]:
        for file in due(self.held):  # what dead consumers have left
            move(file, self.new / name_at(0.0, attempt_of(file), file))
        found: list[Delivery] = []
        for file in due(self.new):
            if len(found) == limit:
                break
            attempt = attempt_of(file) + 1
            held = self.held / name_at(window, attempt, file)
            if move(file, held):
                found.append(Delivery(packet=read(held), queue=self.new.parent.name, attempt=attempt, handle=held))
        return found


def now() -> int:
    return time.time_ns() // 1000


def name_at(seconds: float, attempt: int = 0, file: Path | None = None) -> str:
    """``seconds`` from now, how often it was delivered, and which message it is."""
    which = uuid.uuid4().hex if file is None else file.name.split(".")[2]
    return f"{now() + round(seconds * 1e6):020}.{attempt}.{which}"


def attempt_of(file: Path) -> int:
    return int(file.name.split(".")[1])


def is_due(file: Path) -> bool:
    return file.name.split(".")[0] <= f"{now():020}"


def due(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.name[0] != "." and is_due(file))


def write(folder: Path, packet: Packet) -> None:
    """All of it or nothing: it is written under another name, and renamed."""
    file = folder / name_at(0.0)
    unready = file.with_name(f".{file.name}")
    unready.write_bytes(msgpack.encode(packet))
    unready.rename(file)


def read(file: Path) -> Packet:
    return msgpack.decode(file.read_bytes(), type=Packet)


def move(file: Path, to: Path) -> bool:
    """False: somebody else was faster, or it is settled."""
    try:
        file.rename(to)
    except FileNotFoundError:
        return False
    return True


def remove(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


class SpoolPublisher:
    def __init__(self, backend: SpoolBackend) -> None:
        self._backend = backend

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        spool = Spool(self._backend, queue)
        return [self._sent(spool, packet) for packet in packets]

    def _sent(self, spool: Spool, packet: Packet) -> Exception | None:
        if len(packet.body) > MAX_BODY:
            return PayloadTooLarge(f"a body of {len(packet.body)} bytes is over {MAX_BODY}; send a reference to it")
        write(spool.new, packet)
        return None

    async def close(self) -> None: ...


class SpoolConsumer:
    def __init__(self, backend: SpoolBackend, queue: str, prefetch: int) -> None:
        self._spool, self._window, self._prefetch = Spool(backend, queue), backend.window, prefetch
        self._mine: dict[int, Delivery] = {}

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            found = self._spool.take(min(limit, self._prefetch - len(self._mine)), self._window)
            self._mine.update((id(each), each) for each in found)
            if found or time.monotonic() >= deadline:
                return found
            await asyncio.sleep(0.02)

    def _give_up(self, delivery: Delivery) -> bool:
        """Whether it was still this consumer's, which it no longer is."""
        return self._mine.pop(id(delivery), None) is not None and not is_due(delivery.handle)

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return [self._give_up(each) and remove(each.handle) for each in deliveries]

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return [
            self._give_up(each) and move(each.handle, self._spool.new / name_at(delay, each.attempt, each.handle))
            for each in deliveries
        ]

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        return [self._extended(each, seconds) for each in deliveries]

    def _extended(self, delivery: Delivery, seconds: float) -> bool:
        longer = delivery.handle.with_name(name_at(seconds, delivery.attempt, delivery.handle))
        if id(delivery) not in self._mine or is_due(delivery.handle) or not move(delivery.handle, longer):
            return False
        delivery.handle = longer
        return True

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        if not self._extended(delivery, self._window):
            return False
        given_up = structs.replace(delivery.packet, headers={**delivery.packet.headers, **headers})
        write(self._spool.dead, given_up)  # there before it is gone from here: killed in between, there are two
        return self._give_up(delivery) and remove(delivery.handle)

    async def flush(self) -> None: ...

    async def close(self) -> None:
        await self.nack(list(self._mine.values()))


class SpoolDeadLetters:
    def __init__(self, backend: SpoolBackend, queue: str) -> None:
        self._queue, self._spool = queue, Spool(backend, queue)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        files = [file for file in due(self._spool.dead) if cursor is None or file.name > cursor]
        page = [DeadLetter(id=file.name, packet=read(file), queue=self._queue) for file in files[:limit]]
        return page, page[-1].id if len(files) > limit else None

    async def remove(self, ids: Sequence[str]) -> int:
        return sum(remove(self._spool.dead / require_name(each)) for each in ids)

    async def count(self) -> int:
        return len(due(self._spool.dead))

    async def close(self) -> None: ...
