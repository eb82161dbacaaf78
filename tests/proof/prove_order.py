"""Order per key (F75) while attempts fail and workers are killed: messages of many keys, numbered per key, and the
order of their effects. An inversion is a message whose first effect came after that of a later one of its key."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

import effectonce as eo
from tests.harness.installed import ROOT
from tests.proof.order_victim import PREFETCH, OrderPlan
from tests.proof.soak import Tally

KEYS = 300
BATCH = 500
MAX_BACKLOG = 6_000
FAILURE_RATE = 0.03
QUIET_LIMIT_S = 120.0  # without a single effect, what is open counts as lost


class OrderLedger:
    """Reads the ledger as it grows, and counts."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file: BinaryIO = path.open("rb")
        self._rest = b""
        self._latest: dict[bytes, int] = {}
        self._seen: set[tuple[bytes, int]] = set()
        self.effects = 0
        self.inversions: list[str] = []

    @property
    def distinct(self) -> int:
        return len(self._seen)

    def read(self) -> None:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            key, _, text = line.partition(b" ")
            number = int(text)
            self.effects += 1
            if (key, number) in self._seen:
                continue
            self._seen.add((key, number))
            if number < self._latest.get(key, -1):
                self.inversions.append(f"{key.decode()}: {number} came after {self._latest[key]}")
            self._latest[key] = max(number, self._latest.get(key, -1))

    def close(self) -> None:
        self._file.close()


class OrderProof:
    """One run: a publisher, ``workers`` victims of which one after another is killed, and the count."""

    def __init__(self, broker_url: str, store_url: str, folder: str, seed: str, *, workers: int, kills: int):
        self._random = random.Random(seed)
        queue = f"order-{seed}-{self._random.randrange(10**6)}"
        self._plan = OrderPlan(broker_url, store_url, queue, f"{folder}/ledger", FAILURE_RATE)
        self._workers = workers
        self._wanted_kills = kills  # spread over the messages: a worker gets to work before it is killed
        self._numbers: Counter[str] = Counter()
        self._kills = 0

    def run(self, messages: int, seconds: float, progress: Callable[[float], object] = float) -> Tally:
        tally, began = Tally(0), time.monotonic()
        ledger = OrderLedger(Path(self._plan.ledger))
        with eo.connect_broker(self._plan.broker) as broker:
            broker.declare(self._plan.queue, group="order")
            victims = deque(self._start() for _ in range(self._workers))
            try:
                self._drive(broker, ledger, victims, tally, messages, seconds, progress)
            finally:
                for victim in victims:
                    victim.send_signal(signal.SIGKILL)
                    victim.wait()
        ledger.read()
        ledger.close()
        tally.effects = tally.deliveries = ledger.effects
        tally.lost = tally.messages - ledger.distinct
        tally.doubled = ledger.effects - ledger.distinct
        tally.kills = self._kills
        tally.unrecorded = (
            self._kills * PREFETCH
        )  # so many effects at most were not recorded when their worker was killed
        tally.errors = {"inversions": len(ledger.inversions)}
        tally.violations = [f"inversion, {text}" for text in ledger.inversions[:5]]
        tally.seconds = time.monotonic() - began
        return tally

    def _drive(
        self,
        broker: eo.Broker,
        ledger: OrderLedger,
        victims: deque[subprocess.Popen[bytes]],
        tally: Tally,
        messages: int,
        seconds: float,
        progress: Callable[[float], object],
    ) -> None:
        began = last_effect_at = time.monotonic()
        kill_after, effects = messages // (self._wanted_kills + 1), 0
        while True:
            now = time.monotonic()
            publishing = tally.messages < messages and now - began < seconds
            if publishing and tally.messages - ledger.distinct < MAX_BACKLOG:
                batch = [self._make_message() for _ in range(min(BATCH, messages - tally.messages))]
                broker.publish(self._plan.queue, batch)
                tally.messages += len(batch)
            ledger.read()
            if ledger.effects > effects:
                effects, last_effect_at = ledger.effects, now
            if not publishing and ledger.distinct >= tally.messages:
                return
            if now - last_effect_at > QUIET_LIMIT_S:
                return
            if self._kills < self._wanted_kills and ledger.distinct > (self._kills + 1) * kill_after:
                victim = victims.popleft()
                victim.kill()
                victim.wait()
                self._kills += 1
                victims.append(self._start())
            progress(max(ledger.distinct / messages, min((now - began) / seconds, 1.0)))
            time.sleep(0.02)

    def _make_message(self) -> eo.Message[int]:
        key = f"key-{self._random.randrange(KEYS)}"
        self._numbers[key] += 1
        return eo.Message(data=self._numbers[key], ordering_key=key)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.proof.order_victim", msgspec.json.encode(self._plan).decode()]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
