"""A broker made of folders. A message is a file, moved by renaming it: of several that try at once, one succeeds.

queue/new/    TIME.ATTEMPT.ID     to be delivered, not before TIME (microseconds)
queue/held/   UNTIL.ATTEMPT.ID    with a consumer, until its ack window ends; then any consumer takes it back
queue/dead/   TIME.0.ID           dead letters
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
        self.window_s = address.seconds("ack_window", 30.0)
        address.refuse_unknown_options()  # refuses options that do not exist
        self.root = Path(address.path)
        self.capabilities = BrokerCapabilities(
            name="spool", ack_window_s=self.window_s, extends=True,
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
        self.name = queue
        self.new, self.held, self.dead = folder / "new", folder / "held", folder / "dead"
        for subfolder in (self.new, self.held, self.dead):
            subfolder.mkdir(parents=True, exist_ok=True)

    def take(self, limit: int, window: float) -> list[Delivery]:
        """Deliver up to ``limit`` messages, each for ``window`` seconds."""
        for file in list_due(self.held):  # deliveries of dead consumers
            move(file, self.new / make_name(0.0, attempt_of(file), file))
        deliveries: list[Delivery] = []
        for file in list_due(self.new):
            if len(deliveries) == limit:
                break
            attempt = attempt_of(file) + 1
            held = self.held / make_name(window, attempt, file)
            if move(file, held):
                deliveries.append(Delivery(packet=read(held), queue=self.name, attempt=attempt, handle=held))
        return deliveries


def now() -> int:
    return time.time_ns() // 1000


def make_name(seconds: float, attempt: int = 0, file: Path | None = None) -> str:
    """Make a file's name of a time, ``seconds`` from now, its attempts, and the id of its message."""
    id = uuid.uuid4().hex if file is None else file.name.split(".")[2]
    return f"{now() + round(seconds * 1e6):020}.{attempt}.{id}"


def attempt_of(file: Path) -> int:
    return int(file.name.split(".")[1])


def is_due(file: Path) -> bool:
    return file.name.split(".")[0] <= f"{now():020}"


def list_due(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.name[0] != "." and is_due(file))


def write(folder: Path, packet: Packet) -> None:
    """Write a message whole or not at all: under another name, which is then changed."""
    file = folder / make_name(0.0)
    unready = file.with_name(f".{file.name}")
    unready.write_bytes(msgpack.encode(packet))
    unready.rename(file)


def read(file: Path) -> Packet:
    return msgpack.decode(file.read_bytes(), type=Packet)


def move(file: Path, to: Path) -> bool:
    """Rename a message. False: another consumer was faster, or it is settled."""
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
        return [self._send(spool, packet) for packet in packets]

    def _send(self, spool: Spool, packet: Packet) -> Exception | None:
        if len(packet.body) > MAX_BODY:
            return PayloadTooLarge(f"a body of {len(packet.body)} bytes is over {MAX_BODY}; send a reference to it")
        write(spool.new, packet)
        return None

    async def close(self) -> None: ...


class SpoolConsumer:
    def __init__(self, backend: SpoolBackend, queue: str, prefetch: int) -> None:
        self._spool, self._window_s, self._prefetch = Spool(backend, queue), backend.window_s, prefetch
        self._unsettled: dict[int, Delivery] = {}

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait
        while True:
            deliveries = self._spool.take(min(limit, self._prefetch - len(self._unsettled)), self._window_s)
            self._unsettled.update((id(delivery), delivery) for delivery in deliveries)
            if deliveries or time.monotonic() >= deadline:
                return deliveries
            await asyncio.sleep(0.02)

    def _release(self, delivery: Delivery) -> bool:
        """Forget a delivery. Returns whether it was still this consumer's."""
        return self._unsettled.pop(id(delivery), None) is not None and not is_due(delivery.handle)

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return [self._release(delivery) and remove(delivery.handle) for delivery in deliveries]

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return [self._release(delivery) and self._requeue(delivery, delay) for delivery in deliveries]

    def _requeue(self, delivery: Delivery, delay: float) -> bool:
        return move(delivery.handle, self._spool.new / make_name(delay, delivery.attempt, delivery.handle))

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        return [self._extend(delivery, seconds) for delivery in deliveries]

    def _extend(self, delivery: Delivery, seconds: float) -> bool:
        longer = delivery.handle.with_name(make_name(seconds, delivery.attempt, delivery.handle))
        if id(delivery) not in self._unsettled or is_due(delivery.handle) or not move(delivery.handle, longer):
            return False
        delivery.handle = longer
        return True

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        if not self._extend(delivery, self._window_s):
            return False
        dead_letter = structs.replace(delivery.packet, headers={**delivery.packet.headers, **headers})
        write(self._spool.dead, dead_letter)  # before it is removed: a process killed in between leaves two, not none
        return self._release(delivery) and remove(delivery.handle)

    async def flush(self) -> None: ...

    async def close(self) -> None:
        await self.nack(list(self._unsettled.values()))


class SpoolDeadLetters:
    def __init__(self, backend: SpoolBackend, queue: str) -> None:
        self._queue, self._spool = queue, Spool(backend, queue)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        files = [file for file in list_due(self._spool.dead) if cursor is None or file.name > cursor]
        page = [DeadLetter(id=file.name, packet=read(file), queue=self._queue) for file in files[:limit]]
        return page, page[-1].id if len(files) > limit else None

    async def remove(self, ids: Sequence[str]) -> int:
        return sum(remove(self._spool.dead / require_name(id)) for id in ids)

    async def count(self) -> int:
        return len(list_due(self._spool.dead))

    async def close(self) -> None: ...
