"""A soak: messages go to processes that are killed and stopped at random, and their effects are counted.

``python -m tests.proof.soak PLAN`` is the process from which all victims are forked, so that each costs milliseconds.
It is the queue, too: it redelivers messages that a victim did not acknowledge. A victim takes some messages; after a
random number of them, and then a random number of microseconds, it gets SIGKILL, or is stopped for longer than its
lease and then continued or killed. The process prints its progress, one number a line, and at the end its `Tally` as
JSON. `run` starts it, and kills the servers meanwhile.

A killed process or server loses nothing that the operating system had accepted for writing, with or without fsync: so
the files may lie in memory (`/dev/shm`), where durable settings cost no time. A soak does not show the effect of a
power cut.
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
from tests.proof.soak_victims import (
    CONTROLS,
    LEASE_S,
    NAIVE_PAUSE_S,
    SCOPE,
    SoakPlan,
    connect,
    list_effects,
    list_in_doubt,
    make_deliver,
    set_up,
)

ROOT = Path(__file__).parents[2]
LIBC = ctypes.CDLL(None, use_errno=True)
STOPPED_S = 1.5 * LEASE_S
MAX_REDELIVERIES = 400  # of one message; beyond that it counts as lost


class Tally(Struct):
    """The counts of one soak."""

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
    errors: dict[str, int] = msgspec.field(default_factory=dict)  # by name, those that deliveries raised
    seconds: float = 0.0


class Victim:
    """One process that is to be killed, and its messages."""

    def __init__(self, pid: int, pipe: int, keys: list[str], stopped_after: int | None) -> None:
        self.pid = pid
        self.pipe = pipe
        self.keys = keys
        self.stopped_after = stopped_after  # how many replies; None: it is not stopped
        self.replies = 0


class Soak:
    """One soak: the queue, the victims, and the count."""

    def __init__(self, plan: SoakPlan) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.tally = Tally(plan.messages)
        self.ready: list[str] = []
        self.delayed: list[tuple[float, str]] = []
        self.redeliveries: Counter[str] = Counter()
        self.recorded: dict[str, set[int]] = {}  # mode L: by key, the tokens that were observed as done
        self.victims: dict[int, Victim] = {}
        self.timers: list[tuple[float, int, str]] = []  # the time, the process, and what is done to it
        self.selector = selectors.DefaultSelector()
        self.first_delivery_s, self.delivery_s = 0.02, 0.004  # moving averages: of a victim's first delivery, of others
        if plan.mode in CONTROLS:
            self.first_delivery_s = self.delivery_s = 2 * NAIVE_PAUSE_S
        self.messages_per_victim = max(1, round(plan.messages / max(plan.kills, 1)))
        self.started: set[str] = set()
        self.settled = 0  # deliveries

    # -- the queue

    def run(self) -> Tally:
        began = time.monotonic()
        keys = [f"m{number}" for number in range(self.plan.messages)]
        self.ready = keys + self.random.sample(keys, len(keys) // 5)
        self.random.shuffle(self.ready)
        set_up(self.plan)
        self.observer = Observer(self.plan)
        gc.freeze()
        shown = 0.0
        while self.open:
            self._take_delayed()
            while len(self.victims) < self.plan.workers and self.ready:
                self._fork()
            for chosen, _ in self.selector.select(self._pause()):
                self._read_replies(self.victims[chosen.data])
            self._fire_timers()
            spent = time.monotonic() - began
            if spent > self.plan.seconds:
                self._withdraw()
            done = max(self.settled / (self.settled + self.open), min(spent / self.plan.seconds, 1.0))
            if done >= shown + 0.01:
                shown = done
                print(done, flush=True)
        self.tally.messages = len(self.started)
        self._count(sorted(self.started))
        self.tally.seconds = time.monotonic() - began
        return self.tally

    @property
    def open(self) -> int:
        """How many deliveries are not settled: those that wait, and those that a victim has not answered."""
        unanswered = sum(len(victim.keys) - victim.replies for victim in self.victims.values())
        return len(self.ready) + len(self.delayed) + unanswered

    def _withdraw(self) -> None:
        self.ready = [key for key in self.ready if key in self.started]

    def _fork(self) -> None:
        size = self.random.randint(1, 2 * self.messages_per_victim)
        keys = [self.ready.pop() for _ in range(min(size + 2, len(self.ready)))]
        if self.victims and self.random.random() < 0.3:  # a duplicate beside the first, while that runs
            other = self.random.choice(list(self.victims.values()))
            if other.replies < len(other.keys):
                keys.insert(0, other.keys[other.replies])
        self.started.update(keys)
        ends_after = self.random.randrange(size) if self.tally.kills < self.plan.kills else None
        stops = ends_after is not None and self.random.random() < 0.03
        pace = 1.3 * self.random.random() * (self.delivery_s if ends_after else self.first_delivery_s)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _run_victim(self.plan, keys, writer, None if stops else ends_after, pace)
        os.close(writer)
        victim = self.victims[pid] = Victim(pid, reader, keys, ends_after if stops else None)
        self.selector.register(reader, selectors.EVENT_READ, pid)
        if victim.stopped_after == 0:
            self._stop_soon(victim)

    def _stop_soon(self, victim: Victim) -> None:
        heapq.heappush(self.timers, (time.monotonic() + self.random.random() * self.delivery_s, victim.pid, "stop"))

    def _read_replies(self, victim: Victim) -> None:
        output = os.read(victim.pipe, 65_536)
        if not output:
            self._end_victim(victim)
            return
        for reply in output.decode().split("\n")[:-1]:
            key = victim.keys[victim.replies]
            victim.replies += 1
            seconds, _, outcome = reply.partition(" ")
            if victim.replies == 1:
                self.first_delivery_s += 0.1 * (float(seconds) - self.first_delivery_s)
            else:
                self.delivery_s += 0.02 * (float(seconds) - self.delivery_s)
            self._handle_reply(key, outcome)
            if victim.replies == victim.stopped_after:
                self._stop_soon(victim)

    def _handle_reply(self, key: str, reply: str) -> None:
        word, _, error = reply.partition(" ")
        if word == "later":
            self.tally.errors[error] = self.tally.errors.get(error, 0) + 1
            self._note_recorded(key)
            self._deliver_again(key, 0.1)
        else:
            self.settled += 1
            self.tally.deliveries += 1

    def _deliver_again(self, key: str, after: float) -> None:
        self.tally.deliveries += 1
        self.redeliveries[key] += 1
        if self.redeliveries[key] > MAX_REDELIVERIES:
            violation = f"{key} was delivered {MAX_REDELIVERIES} times and never settled"
            if violation not in self.tally.violations:
                self.tally.violations.append(violation)
            return
        heapq.heappush(self.delayed, (time.monotonic() + after, key))

    def _end_victim(self, victim: Victim) -> None:
        """Collect a victim that has ended, and redeliver the messages that it did not settle."""
        self.selector.unregister(victim.pipe)
        os.close(victim.pipe)
        del self.victims[victim.pid]
        _, status = os.waitpid(victim.pid, 0)
        if os.WIFSIGNALED(status):
            self.tally.kills += 1
        elif victim.replies < len(victim.keys):
            self.tally.violations.append(f"a process ended by itself with {status}")
        for index, key in enumerate(victim.keys[victim.replies :]):
            if index == 0:
                self._note_recorded(key)
                self._deliver_again(key, self.random.choice((0.0, LEASE_S)))
            else:
                self.ready.append(key)

    # -- time

    def _take_delayed(self) -> None:
        while self.delayed and self.delayed[0][0] <= time.monotonic():
            self.ready.append(heapq.heappop(self.delayed)[1])

    def _pause(self) -> float:
        times = [queue[0][0] for queue in (self.delayed, self.timers) if queue]
        return max(0.0, min([*times, time.monotonic() + 1.0]) - time.monotonic())

    def _fire_timers(self) -> None:
        while self.timers and self.timers[0][0] <= time.monotonic():
            _, pid, action = heapq.heappop(self.timers)
            victim = self.victims.get(pid)
            if victim is None:  # it has ended before
                continue
            if action == "stop":
                os.kill(pid, signal.SIGSTOP)
                self.tally.stops += 1
                heapq.heappush(self.timers, (time.monotonic() + STOPPED_S, pid, "continue"))
            elif action == "continue":
                os.kill(pid, signal.SIGCONT)
                if self.random.random() < 0.5:  # it is a zombie for one more moment
                    heapq.heappush(
                        self.timers, (time.monotonic() + self.random.random() * self.delivery_s, pid, "kill")
                    )
            else:
                os.kill(pid, signal.SIGKILL)

    # -- the count

    def _note_recorded(self, key: str) -> None:
        """Note the attempt that has just ended, if it was recorded as done: its effect must not be repeated."""
        token = self.observer.recorded_token(key) if self.plan.mode == "L" else 0
        if token:
            self.recorded.setdefault(key, set()).add(token)

    def _count(self, keys: list[str]) -> None:
        tally = self.tally
        tally.doubts = sorted(list_in_doubt(self.plan))
        tally.in_doubt = len(tally.doubts)
        if self.plan.mode in ("K", "I"):
            return  # the provider counts them
        effects = list_effects(self.plan)
        counted = Counter(key for key, _ in effects)
        tally.effects = len(effects)
        tally.lost = sum(not counted[key] for key in keys)
        tally.doubled = sum(count - 1 for count in counted.values())
        if self.plan.mode != "L":
            return
        for key in keys:
            self._note_recorded(key)
        tally.unrecorded = sum(token not in self.recorded.get(key, ()) for key, token in effects)
        twice = [key for key, tokens in self.recorded.items() if len(tokens) > 1]
        never = [key for key in keys if not self.recorded.get(key)]
        again = [pair for pair, count in Counter(effects).items() if count > 1]
        tally.violations += [f"{key} was recorded as done by two attempts" for key in twice]
        tally.violations += [f"{key} was settled and is not recorded" for key in never]
        tally.violations += [f"{key} happened twice under the one claim {token}" for key, token in again]


class Observer:
    """Reads the store in a process of its own: a process that forks must not hold connections."""

    def __init__(self, plan: SoakPlan) -> None:
        keys, ask = os.pipe()
        answers, answer = os.pipe()
        if plan.mode == "L" and os.fork() == 0:
            os.close(ask)
            store = connect(plan)
            for line in os.fdopen(keys):
                try:
                    record = store.get(SCOPE, line[:-1])
                    token = record.token if record is not None and record.state == "done" else 0
                except Exception:  # its server is down: the count allows for an unknown token
                    token = 0
                os.write(answer, b"%d\n" % token)
            os._exit(0)
        os.close(keys)
        os.close(answer)
        self._ask = ask
        self._answers = os.fdopen(answers)

    def recorded_token(self, key: str) -> int:
        """Return the token under which ``key`` is done; 0: it is not, or that is unknown."""
        os.write(self._ask, f"{key}\n".encode())
        return int(self._answers.readline())


def _run_victim(plan: SoakPlan, keys: list[str], pipe: int, ends_after: int | None, seconds: float) -> None:
    """Run a victim. It never returns, and does not outlive the queue, stopped or not."""
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    try:
        deliver = make_deliver(plan)
        for number, key in enumerate(keys):
            if number == ends_after:
                kill_self_in(seconds)
            began = time.monotonic()
            try:
                outcome: str = deliver(key)
            except Exception as error:
                outcome = f"later {type(error).__name__}"
            os.write(pipe, f"{time.monotonic() - began:.6f} {outcome}\n".encode())
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


def kill_self_in(seconds: float) -> None:
    """Kill this process by a timer of the kernel: a signal of another process would come too late for the moment."""
    event, timer = _Event(None, signal.SIGKILL, 0), ctypes.c_void_p()
    whole, part = divmod(max(1, round(seconds * 1e9)), 10**9)
    times = (ctypes.c_long * 4)(0, 0, whole, part)
    if LIBC.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) or LIBC.timer_settime(timer, 0, times, None):
        raise OSError(ctypes.get_errno(), "no timer")


# -- from the outside


def run(
    plan: SoakPlan, server: Server | None = None, server_kills: int = 0, progress: Callable[[float], object] = float
) -> Tally:
    """Run one soak, in a process of its own; its server is killed meanwhile, and restarted with the same data."""
    command = [sys.executable, "-m", "tests.proof.soak", msgspec.json.encode(plan).decode()]
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
        raise RuntimeError(f"the soak of mode {plan.mode} ended with {process.returncode}")
    tally = msgspec.json.decode(last, type=Tally)
    tally.server_kills = killed
    return tally


def main() -> None:
    logging.disable()  # losses and their causes are counted
    soak = Soak(msgspec.json.decode(sys.argv[1], type=SoakPlan))
    print(msgspec.json.encode(soak.run()).decode(), flush=True)


if __name__ == "__main__":
    main()
