"""`effectonce demo --crash`: every mode in every scenario, with workers that are really killed.

The parent plays the broker: it hands the same bytes to worker processes, redelivers what was not acknowledged, and
counts the charges in the ledger, which no kill can reach. Nothing depends on timing: workers are stopped at named
points, and only the wait for a dead worker's lease takes its time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from msgspec import Struct, json

from effectonce.cli.terminal import Cell, Colour, Progress, Screen, table

from . import crash_worker
from .crash_modes import MODES, Happened, Mode, Point, ScenarioName
from .shop import Ledger, encoded, envelope

PATIENCE = 30.0


class Broken(Exception):
    """The demo itself did not work; nothing was shown about any mode."""


class Crew:
    """All worker processes, so that none is left when the demo ends, however it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hired: list[BaseProcess] = []
        self._over = False
        self._processes = _start_method()

    def hire(self, *work: object) -> Worker:
        """A new process that does ``work`` as `crash_worker.main`."""
        ours, theirs = self._processes.Pipe()
        with self._lock, theirs:
            if self._over:
                raise Broken("it was ended")
            process = self._processes.Process(target=crash_worker.main, args=(theirs, *work), daemon=True)
            process.start()
            self._hired.append(process)
        return Worker(process, ours)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._lock:
            self._over = True
        for process in self._hired:
            process.kill()
        for process in self._hired:
            process.join()


def _start_method() -> Any:
    """Fresh processes that need not import everything again, where the system can do that."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload([crash_worker.__name__])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is for the parent alone
    try:
        forkserver.ensure_running()
    except OSError:  # it talks through a socket in the temporary folder, whose path can be too long for one
        return multiprocessing.get_context("spawn")
    finally:
        signal.signal(signal.SIGINT, before)
    return multiprocessing.get_context("forkserver")


class Worker:
    """One worker process, seen from the broker."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe

    def send(self, body: bytes) -> str:
        """Hand it a delivery, or the word to go on; its answer."""
        try:
            self._pipe.send_bytes(body)
        except OSError:
            raise Broken("a worker ended by itself") from None
        return self.answer()

    def answer(self) -> str:
        """Its next word."""
        try:
            if not self._pipe.poll(PATIENCE):
                raise Broken(f"a worker did not answer for {PATIENCE:g} s")
            answer = self._pipe.recv_bytes().decode()
        except (EOFError, OSError):
            raise Broken("a worker ended by itself") from None
        if answer.startswith("broken "):
            raise Broken(answer.removeprefix("broken "))
        return answer

    def kill(self) -> None:
        """SIGKILL: no exception, no release, no goodbye."""
        self._process.kill()
        self._process.join()

    def leave(self) -> None:
        """Close the pipe, which ends it."""
        self._pipe.close()
        self._process.join()


class Bench:
    """One mode in one scenario: its files, its workers, and the one message."""

    def __init__(self, mode: Mode, lease: str, folder: Path, crew: Crew) -> None:
        folder.mkdir()
        self._mode, self._lease, self._folder, self._crew = mode, lease, folder, crew
        self._ledger = Ledger(folder / "ledger.db")
        self._workers: list[Worker] = []
        self._parked = False
        self.body = encoded(envelope())

    def worker(self, halt: Point | Literal["any", ""] = "") -> Worker:
        """A new worker process; with ``halt`` it stops there (or at any point), once. It is ready: one that still made
        its tables would wait for another that has halted in a transaction."""
        worker = self._crew.hire(self._mode.name, self._folder, self._lease, halt)
        self._workers.append(worker)
        worker.answer()
        return worker

    def settle(self, worker: Worker, answer: str = "") -> None:
        """Deliver to ``worker`` until it acknowledges the message or parks it."""
        deadline = time.monotonic() + PATIENCE
        answer = answer or worker.send(self.body)
        while answer not in ("ack", "park"):
            if time.monotonic() > deadline:
                raise Broken(f"a delivery was refused for {PATIENCE:g} s: {answer}")
            if answer.startswith("again "):
                time.sleep(float(answer.removeprefix("again ")))
                answer = worker.send(self.body)
            else:  # it halted on the way
                answer = worker.send(b"go")
        self._parked = self._parked or answer == "park"

    def over(self) -> Happened:
        for worker in self._workers:
            worker.leave()
        return Happened(self._ledger.count(), self._parked)


class Scenario(Struct, frozen=True, kw_only=True):
    """What happens to the payment, as a column of the table."""

    name: ScenarioName
    head: str
    play: Callable[[Bench], None]
    lease: str = "30s"


def delivered_twice(bench: Bench) -> None:
    worker = bench.worker()
    bench.settle(worker)
    bench.settle(worker)


def two_at_once(bench: Bench) -> None:
    """The second delivery arrives while the first is in the middle of its work; what is refused comes again."""
    first, second = bench.worker(halt="any"), bench.worker(halt="any")
    halted = first.send(bench.body)
    answer = second.send(bench.body)
    refused = answer.startswith("again ")
    if not refused:
        bench.settle(second, answer)
    bench.settle(first, halted)
    if refused:
        bench.settle(second)


def killed(at: Point) -> Callable[[Bench], None]:
    """The worker dies there, unacknowledged; the broker gives the same bytes to a new one."""

    def play(bench: Bench) -> None:
        doomed = bench.worker(halt=at)
        if (reached := doomed.send(bench.body)) != at:
            raise Broken(f"the worker was to halt at {at!r} and answered {reached!r}")
        doomed.kill()
        bench.settle(bench.worker())

    return play


SCENARIOS = (
    Scenario(name="twice", head="delivered\ntwice", play=delivered_twice),
    Scenario(name="at_once", head="two\nat once", play=two_at_once),
    Scenario(name="killed_before", head="killed\nbefore\nthe charge", play=killed("charging"), lease="300ms"),
    Scenario(name="killed_after", head="killed\nafter\nthe charge", play=killed("charged"), lease="300ms"),
)


class Line(Struct):
    """One mode and what it came to, in every scenario."""

    mode: Mode
    happened: dict[ScenarioName, Happened] = {}

    @property
    def lost(self) -> int:
        return sum(happened.lost for happened in self.happened.values())

    def broken(self) -> list[str]:
        """The scenarios whose outcome contradicts the mode's promise."""
        if self.mode.promise is None:
            return []
        return [name for name, allowed in self.mode.promise.items() if self.happened[name] not in allowed]


def main(folder: Path, *, as_json: bool = False) -> int:
    """Play everything, print one table; 0 where every mode kept its promise, 1 where one did not, 2 if it failed."""
    screen = Screen()
    if not as_json:
        screen.print("One payment, always the same bytes; workers die by SIGKILL before they can ack.")
        screen.print("How often was the card charged?")
        screen.print()
    started = time.monotonic()
    try:
        lines = play_all(folder)
    except Broken as error:
        print(f"effectonce: [demo] the demo itself failed: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.encode(_document(lines, time.monotonic() - started)).decode())
    else:
        _print(screen, lines)
    return 1 if any(line.broken() for line in lines) else 0


def play_all(folder: Path) -> list[Line]:
    """Every mode in every scenario, as many at once as the machine has cores and one more (some only wait)."""
    lines = [Line(mode) for mode in MODES]
    progress = Progress(len(lines) * len(SCENARIOS))
    progress.show("starting workers")
    # Left in reverse: first the workers are killed, then the threads that talked to them end.
    with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool, Crew() as crew:
        cells = {
            pool.submit(_play, line.mode, scenario, folder, crew): (line, scenario)
            for scenario in reversed(SCENARIOS)
            for line in lines
        }
        try:
            for cell in as_completed(cells):
                line, scenario = cells[cell]
                line.happened[scenario.name] = cell.result()
                progress.step(f"{line.mode.title}: {' '.join(scenario.head.split())}")
        finally:
            progress.wipe()
    return lines


def _play(mode: Mode, scenario: Scenario, folder: Path, crew: Crew) -> Happened:
    bench = Bench(mode, scenario.lease, folder / f"{mode.name}.{scenario.name}", crew)
    scenario.play(bench)
    return bench.over()


def _print(screen: Screen, lines: Sequence[Line]) -> None:
    heads = ["mode", *(scenario.head for scenario in SCENARIOS), "lost", "lets through"]
    for text in table(screen, heads, [_row(line) for line in lines]):
        screen.print(text)
    screen.print()
    screen.print("DOUBLED: the customer paid twice.  LOST: acked, but never charged.")
    screen.print("in doubt: nobody can know; neither run again nor dropped, an operator decides.")
    broken = [f"{line.mode.title}: {name}" for line in lines for name in line.broken()]
    if broken:
        screen.print_tagged("FAILED", f"a promise was not kept: {'; '.join(broken)}", "red")
    else:
        screen.print_tagged("ok", "every mode of effectonce kept its promise, and none lost the payment.", "green")


def _row(line: Line) -> list[Cell]:
    cells = [Cell(str(line.happened[scenario.name]), _colour(line.happened[scenario.name])) for scenario in SCENARIOS]
    lost = Cell(str(line.lost), "red" if line.lost else "")
    return [Cell(line.mode.title), *cells, lost, Cell(line.mode.lets_through)]


def _colour(happened: Happened) -> Colour:
    if happened.in_doubt:
        return "yellow"
    return "green" if happened.charges == 1 else "red"


def _document(lines: Sequence[Line], seconds: float) -> dict[str, object]:
    return {
        "ok": not any(line.broken() for line in lines),
        "seconds": round(seconds, 3),
        "modes": [
            {
                "mode": line.mode.name,
                "title": line.mode.title,
                "promises": line.mode.promise is not None,
                "charges": {scenario.name: line.happened[scenario.name].charges for scenario in SCENARIOS},
                "in_doubt": [scenario.name for scenario in SCENARIOS if line.happened[scenario.name].in_doubt],
                "lost": line.lost,
                "broken": line.broken(),
                "lets_through": line.mode.lets_through,
            }
            for line in lines
        ],
    }
