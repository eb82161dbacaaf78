"""A soak: messages, some of them several times, to processes that are killed and stopped at random; and the count.

``python -m tests.proof.soak ORDER`` is the process that all others are forked from, so that a life costs milliseconds.
It is the queue, too: what was given to a process and not acknowledged is delivered again. A life takes some messages;
after a random number of them, and then a random number of microseconds, it is ended with SIGKILL, or stopped for longer
than its lease and then continued or killed. On standard output it says how far it is, one number a line, and at the
end its `Tally` as JSON. `run` is that from the outside, with the servers killed meanwhile.

A killed process or server loses nothing that the operating system had taken for writing, with or without fsync: so the
files may lie in memory (`/dev/shm`), where durable settings cost no time. What a power cut does is not shown here.
"""

from __future__ import annotations

import ctypes
import gc
import heapq
import logging
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.harness.process import Server
from tests.proof.soak_victims import LEASE, SCOPE, Order, connect, deliverer, effects_of, in_doubt, set_up

ROOT = Path(__file__).parents[2]
LIBC = ctypes.CDLL(None, use_errno=True)
STOPPED = 1.5 * LEASE
MOST_REDELIVERIES = 400  # of one message; beyond that it counts as lost


class Tally(Struct):
    """What one soak came to."""

    messages: int
    deliveries: int = 0
    kills: int = 0
    stops: int = 0
    server_kills: int = 0
    faults: int = 0  # of the network, or of the model
    effects: int = 0
    lost: int = 0
    doubled: int = 0
    unrecorded: int = 0  # mode L: runs that had their effect and ended without a recorded success
    in_doubt: int = 0
    doubts: list[str] = msgspec.field(default_factory=list)
    violations: list[str] = msgspec.field(default_factory=list)
    errors: dict[str, int] = msgspec.field(default_factory=dict)  # what deliveries raised, and were delivered again for
    seconds: float = 0.0


class Life:
    """One process, and what it was given."""

    def __init__(self, pid: int, pipe: int, keys: list[str], stopped_after: int | None) -> None:
        self.pid = pid
        self.pipe = pipe
        self.keys = keys
        self.stopped_after = stopped_after  # so many replies
        self.replies = 0


class Soak:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.random = random.Random(order.seed)
        self.tally = Tally(order.messages)
        self.ready: list[str] = []
        self.later: list[tuple[float, str]] = []
        self.again: Counter[str] = Counter()
        self.recorded: dict[str, set[int]] = {}  # mode L: of each key, the tokens that were seen recorded as done
        self.lives: dict[int, Life] = {}
        self.timers: list[tuple[float, int, str]] = []  # when, which process, what is done to it
        self.selector = selectors.DefaultSelector()
        self.first, self.pace = 0.02, 0.004  # how long the first delivery of a life took lately, and the others
        self.per_life = max(1, round(order.messages / max(order.kills, 1)))
        self.started: set[str] = set()
        self.settled = self.open = 0  # deliveries

    # -- the queue

    def run(self) -> Tally:
        began = time.monotonic()
        keys = [f"m{number}" for number in range(self.order.messages)]
        self.ready = keys + self.random.sample(keys, len(keys) // 5)
        self.random.shuffle(self.ready)
        self.open = len(self.ready)
        set_up(self.order)
        self.observer = Observer(self.order)
        gc.freeze()
        shown = 0.0
        while self.open:
            self._wake_later()
            while len(self.lives) < self.order.workers and self.ready:
                self._fork()
            for chosen, _ in self.selector.select(self._pause()):
                self._heard(self.lives[chosen.data])
            self._due()
            spent = time.monotonic() - began
            if spent > self.order.seconds:
                self._withdraw()
            done = max(self.settled / (self.settled + self.open), min(spent / self.order.seconds, 1.0))
            if done >= shown + 0.01:
                shown = done
                print(done, flush=True)
        self.tally.messages = len(self.started)
        self._count(sorted(self.started))
        self.tally.seconds = time.monotonic() - began
        return self.tally

    def _withdraw(self) -> None:
        kept = [key for key in self.ready if key in self.started]
        self.open -= len(self.ready) - len(kept)
        self.ready = kept

    def _fork(self) -> None:
        size = self.random.randint(1, 2 * self.per_life)
        keys = [self.ready.pop() for _ in range(min(size + 2, len(self.ready)))]
        if self.lives and self.random.random() < 0.3:  # a duplicate beside the first, while that runs
            other = self.random.choice(list(self.lives.values()))
            if other.replies < len(other.keys):
                keys.insert(0, other.keys[other.replies])
                self.open += 1
        self.started.update(keys)
        ends_after = self.random.randrange(size) if self.tally.kills < self.order.kills else None
        stops = ends_after is not None and self.random.random() < 0.03
        pace = 1.3 * self.random.random() * (self.pace if ends_after else self.first)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _live(self.order, keys, writer, None if stops else ends_after, pace)
        os.close(writer)
        life = self.lives[pid] = Life(pid, reader, keys, ends_after if stops else None)
        self.selector.register(reader, selectors.EVENT_READ, pid)
        if life.stopped_after == 0:
            self._stop_soon(life)

    def _stop_soon(self, life: Life) -> None:
        heapq.heappush(self.timers, (time.monotonic() + self.random.random() * self.pace, life.pid, "stop"))

    def _heard(self, life: Life) -> None:
        said = os.read(life.pipe, 65_536)
        if not said:
            self._over(life)
            return
        for reply in said.decode().split("\n")[:-1]:
            key = life.keys[life.replies]
            life.replies += 1
            took, _, came = reply.partition(" ")
            if life.replies == 1:
                self.first += 0.1 * (float(took) - self.first)
            else:
                self.pace += 0.02 * (float(took) - self.pace)
            self._replied(key, came)
            if life.replies == life.stopped_after:
                self._stop_soon(life)

    def _replied(self, key: str, reply: str) -> None:
        word, _, about = reply.partition(" ")
        if word == "later":
            self.tally.errors[about] = self.tally.errors.get(about, 0) + 1
            self._look(key)
            self._deliver_again(key, 0.1)
        else:
            self.settled += 1
            self.open -= 1
            self.tally.deliveries += 1

    def _deliver_again(self, key: str, after: float) -> None:
        self.tally.deliveries += 1
        self.again[key] += 1
        if self.again[key] > MOST_REDELIVERIES:
            told = f"{key} was delivered {MOST_REDELIVERIES} times and never settled"
            if told not in self.tally.violations:
                self.tally.violations.append(told)
            self.open -= 1
            return
        heapq.heappush(self.later, (time.monotonic() + after, key))

    def _over(self, life: Life) -> None:
        """It has ended, by itself or not; what it did not settle comes again."""
        self.selector.unregister(life.pipe)
        os.close(life.pipe)
        del self.lives[life.pid]
        _, status = os.waitpid(life.pid, 0)
        if os.WIFSIGNALED(status):
            self.tally.kills += 1
        elif life.replies < len(life.keys):
            self.tally.violations.append(f"a process ended by itself with {status}")
        for at, key in enumerate(life.keys[life.replies :]):
            if at == 0:
                self._look(key)
                self._deliver_again(key, self.random.choice((0.0, LEASE)))
            else:
                self.ready.append(key)

    # -- time

    def _wake_later(self) -> None:
        while self.later and self.later[0][0] <= time.monotonic():
            self.ready.append(heapq.heappop(self.later)[1])

    def _pause(self) -> float:
        times = [queue[0][0] for queue in (self.later, self.timers) if queue]
        return max(0.0, min([*times, time.monotonic() + 1.0]) - time.monotonic())

    def _due(self) -> None:
        while self.timers and self.timers[0][0] <= time.monotonic():
            _, pid, what = heapq.heappop(self.timers)
            life = self.lives.get(pid)
            if life is None:  # it was done before
                continue
            if what == "stop":
                os.kill(pid, signal.SIGSTOP)
                self.tally.stops += 1
                heapq.heappush(self.timers, (time.monotonic() + STOPPED, pid, "continue"))
            elif what == "continue":
                os.kill(pid, signal.SIGCONT)
                if self.random.random() < 0.5:  # as a zombie with one more moment to live
                    heapq.heappush(self.timers, (time.monotonic() + self.random.random() * self.pace, pid, "kill"))
            else:
                os.kill(pid, signal.SIGKILL)

    # -- the count

    def _look(self, key: str) -> None:
        """Whether the attempt that has just ended was recorded: then nothing of it may happen again."""
        token = self.observer.done_under(key) if self.order.mode == "L" else 0
        if token:
            self.recorded.setdefault(key, set()).add(token)

    def _count(self, keys: list[str]) -> None:
        tally = self.tally
        tally.doubts = sorted(in_doubt(self.order))
        tally.in_doubt = len(tally.doubts)
        if self.order.mode in ("K", "I"):
            return  # the provider knows
        effects = effects_of(self.order)
        counted = Counter(key for key, _ in effects)
        tally.effects = len(effects)
        tally.lost = sum(not counted[key] for key in keys)
        tally.doubled = sum(count - 1 for count in counted.values())
        if self.order.mode != "L":
            return
        for key in keys:
            self._look(key)
        tally.unrecorded = sum(token not in self.recorded.get(key, ()) for key, token in effects)
        twice = [key for key, tokens in self.recorded.items() if len(tokens) > 1]
        never = [key for key in keys if not self.recorded.get(key)]
        again = [pair for pair, count in Counter(effects).items() if count > 1]
        tally.violations += [f"{key} was recorded as done by two attempts" for key in twice]
        tally.violations += [f"{key} was settled and is not recorded" for key in never]
        tally.violations += [f"{key} happened twice under the one claim {token}" for key, token in again]


class Observer:
    """A process of its own that asks the store: whoever forks must not hold connections."""

    def __init__(self, order: Order) -> None:
        asked, ask = os.pipe()
        answers, answer = os.pipe()
        if order.mode == "L" and os.fork() == 0:
            os.close(ask)
            store = connect(order)
            for line in os.fdopen(asked):
                try:
                    record = store.get(SCOPE, line[:-1])
                    token = record.token if record is not None and record.state == "done" else 0
                except Exception:  # its server is down: nobody knows, and the count allows for that
                    token = 0
                os.write(answer, b"%d\n" % token)
            os._exit(0)
        os.close(asked)
        os.close(answer)
        self._ask = ask
        self._answers = os.fdopen(answers)

    def done_under(self, key: str) -> int:
        """The token under which ``key`` is done; 0: it is not, or nobody knows."""
        os.write(self._ask, f"{key}\n".encode())
        return int(self._answers.readline())


def _live(order: Order, keys: list[str], pipe: int, ends_after: int | None, within: float) -> None:
    """A life: it never returns, and does not outlive the queue, stopped or not."""
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    try:
        deliver = deliverer(order)
        for number, key in enumerate(keys):
            if number == ends_after:
                killed_in(within)
            began = time.monotonic()
            try:
                came: str = deliver(key)
            except Exception as error:
                came = f"later {type(error).__name__}"
            os.write(pipe, f"{time.monotonic() - began:.6f} {came}\n".encode())
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(3)


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_char * 48),
    )


def killed_in(seconds: float) -> None:
    """SIGKILL for this process from the kernel's own timer: another process would come too late for the moment."""
    event, timer = _Event(None, signal.SIGKILL, 0), ctypes.c_void_p()
    whole, part = divmod(max(1, round(seconds * 1e9)), 10**9)
    times = (ctypes.c_long * 4)(0, 0, whole, part)
    if LIBC.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) or LIBC.timer_settime(timer, 0, times, None):
        raise OSError(ctypes.get_errno(), "no timer")


# -- from the outside


def run(
    order: Order, server: Server | None = None, server_kills: int = 0, progress: Callable[[float], object] = float
) -> Tally:
    """One soak, in a process of its own; its server is killed meanwhile, and comes back with the same data."""
    command = [sys.executable, "-m", "tests.proof.soak", msgspec.json.encode(order).decode()]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        killed = 0
        last = b""
        for last in process.stdout:
            if last.startswith(b"{"):
                break
            done = float(last)
            progress(done)
            if server is not None and killed < server_kills and done > (killed + 1) / (server_kills + 1):
                killed += 1
                server.kill()
                server.restart()
    if process.returncode:
        raise RuntimeError(f"the soak of mode {order.mode} ended with {process.returncode}")
    tally = msgspec.json.decode(last, type=Tally)
    tally.server_kills = killed
    return tally


def main() -> None:
    logging.disable()  # what is lost, and why, is counted here
    soak = Soak(msgspec.json.decode(sys.argv[1], type=Order))
    print(msgspec.json.encode(soak.run()).decode(), flush=True)


if __name__ == "__main__":
    main()
