"""`effectonce demo --crash`: every mode in every scenario, with workers that are really killed.

This process plays the broker: it hands the same bytes to worker processes, redelivers what was not acknowledged, and
counts the charges in the ledger, which survives every kill. Nothing depends on timing: workers halt at named points.
Only the lease of a dead worker has to be waited for.
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
from typing import Any, Literal

from msgspec import Struct, json

from effectonce.display.terminal import Colour, Screen

from . import crash_worker
from .crash_modes import MODES, DemoMode, ScenarioName, ScenarioOutcome, StopPoint
from .progress import DemoProgress
from .shop import Ledger, encode_message, make_message
from .table import Cell, draw_table

ANSWER_TIMEOUT_S = 30.0


class DemoFailed(Exception):
    """The demo itself failed, which says nothing about any mode."""


class WorkerProcesses:
    """Starts all worker processes, and kills them when the demo ends, however it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: list[BaseProcess] = []
        self._stopped = False
        self._context = _process_context()

    def start(self, *work: object) -> WorkerProcess:
        """Start a process that runs `crash_worker.main` with ``work``."""
        ours, theirs = self._context.Pipe()
        with self._lock, theirs:
            if self._stopped:
                raise DemoFailed("the demo was stopped while it started a worker")
            process = self._context.Process(target=crash_worker.main, args=(theirs, *work), daemon=True)
            process.start()
            self._started.append(process)
        return WorkerProcess(process, ours)

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._stopped = True
        for process in self._started:
            process.kill()
        for process in self._started:
            process.join()


def _process_context() -> Any:
    """Return the quickest way to start fresh processes: where possible, with everything imported once."""
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


class WorkerProcess:
    """One worker process, seen from the broker."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe

    def send(self, body: bytes) -> str:
        """Send a delivery, or b"go" to a halted worker, and return its answer (see `crash_worker`)."""
        try:
            self._pipe.send_bytes(body)
        except OSError:
            raise DemoFailed("a worker ended by itself") from None
        return self.wait_for_answer()

    def wait_for_answer(self) -> str:
        """Wait for the worker's next answer."""
        try:
            if not self._pipe.poll(ANSWER_TIMEOUT_S):
                raise DemoFailed(f"a worker did not answer for {ANSWER_TIMEOUT_S:g} s")
            answer = self._pipe.recv_bytes().decode()
        except (EOFError, OSError):
            raise DemoFailed("a worker ended by itself") from None
        if answer.startswith("broken "):
            raise DemoFailed(answer.removeprefix("broken "))
        return answer

    def kill(self) -> None:
        """Kill the worker by SIGKILL: it raises nothing and releases nothing."""
        self._process.kill()
        self._process.join()

    def stop(self) -> None:
        """Close the pipe, which ends the worker."""
        self._pipe.close()
        self._process.join()


class ScenarioRun:
    """One mode in one scenario: its files, its workers, and the one message."""

    def __init__(self, mode: DemoMode, lease: str, folder: Path, processes: WorkerProcesses) -> None:
        folder.mkdir()
        self._mode, self._lease, self._folder, self._processes = mode, lease, folder, processes
        self._ledger = Ledger(folder / "ledger.db")
        self._workers: list[WorkerProcess] = []
        self._parked = False
        self.body = encode_message(make_message())

    def start_worker(self, halt: StopPoint | Literal["any", ""] = "") -> WorkerProcess:
        """Start a worker process and wait until it is ready. With ``halt`` it stops at that point, or at any, once.

        It must be ready before another one halts: creating its tables would wait for the other's open transaction.
        """
        worker = self._processes.start(self._mode.name, self._folder, self._lease, halt)
        self._workers.append(worker)
        worker.wait_for_answer()
        return worker

    def settle(self, worker: WorkerProcess, answer: str = "") -> None:
        """Deliver to ``worker`` until it acknowledges the message or parks it."""
        answer = self.redeliver(worker, answer or worker.send(self.body))
        while answer not in ("ack", "park"):  # the worker has halted
            answer = self.redeliver(worker, worker.send(b"go"))
        self._parked = self._parked or answer == "park"

    def redeliver(self, worker: WorkerProcess, answer: str) -> str:
        """Deliver again as long as ``worker`` answers "again". Returns its first other answer."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while answer.startswith("again "):
            if time.monotonic() > deadline:
                raise DemoFailed(f"a delivery was refused for {ANSWER_TIMEOUT_S:g} s: {answer}")
            time.sleep(float(answer.removeprefix("again ")))
            answer = worker.send(self.body)
        return answer

    def finish(self) -> ScenarioOutcome:
        for worker in self._workers:
            worker.stop()
        return ScenarioOutcome(self._ledger.count(), self._parked)


class Scenario(Struct, frozen=True, kw_only=True):
    """What happens to the payment: a column of the table."""

    name: ScenarioName
    head: str
    play: Callable[[ScenarioRun], None]
    lease: str = "30s"


def deliver_twice(run: ScenarioRun) -> None:
    worker = run.start_worker()
    run.settle(worker)
    run.settle(worker)


def deliver_two_at_once(run: ScenarioRun) -> None:
    """Deliver a second time while the first delivery is in the middle of its work; redeliver what is refused."""
    first, second = run.start_worker(halt="any"), run.start_worker(halt="any")
    halted = first.send(run.body)
    answer = second.send(run.body)
    refused = answer.startswith("again ")
    if not refused:
        run.settle(second, answer)
    run.settle(first, halted)
    if refused:
        run.settle(second)


def kill_at(at: StopPoint) -> Callable[[ScenarioRun], None]:
    """Kill the worker at a point, before it acks, and deliver the same bytes to a new one."""

    def play(run: ScenarioRun) -> None:
        doomed = run.start_worker(halt=at)
        if (reached := run.redeliver(doomed, doomed.send(run.body))) != at:
            raise DemoFailed(f"the worker was to halt at {at!r} and answered {reached!r}")
        doomed.kill()
        run.settle(run.start_worker())

    return play


SCENARIOS = (
    Scenario(name="twice", head="delivered\ntwice", play=deliver_twice),
    Scenario(name="at_once", head="two\nat once", play=deliver_two_at_once),
    Scenario(name="killed_before", head="killed\nbefore\nthe charge", play=kill_at("charging"), lease="300ms"),
    Scenario(name="killed_after", head="killed\nafter\nthe charge", play=kill_at("charged"), lease="300ms"),
)


class ModeResult(Struct):
    """One mode, and its outcome in every scenario: a row of the table."""

    mode: DemoMode
    outcomes: dict[ScenarioName, ScenarioOutcome] = {}

    @property
    def lost(self) -> int:
        return sum(outcome.lost for outcome in self.outcomes.values())

    def broken_promises(self) -> list[str]:
        """The scenarios whose outcome contradicts the mode's promise."""
        if self.mode.promise is None:
            return []
        return [name for name, allowed in self.mode.promise.items() if self.outcomes[name] not in allowed]


def main(folder: Path, *, as_json: bool = False) -> int:
    """Play every mode in every scenario, and print one table.

    Returns 0 if every mode kept its promise, 1 if one did not, 2 if the demo itself failed.
    """
    screen = Screen()
    if not as_json:
        screen.print("One payment, delivered as the same bytes every time. Workers are killed with")
        screen.print("SIGKILL before they can ack.")
        screen.print("How many times was the card charged?")
        screen.print()
    started = time.monotonic()
    try:
        results = play_all(folder)
    except DemoFailed as error:
        print(f"effectonce: [demo] the demo itself failed: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.encode(_document(results, time.monotonic() - started)).decode())
    else:
        _print(screen, results)
    return 1 if any(result.broken_promises() for result in results) else 0


def play_all(folder: Path) -> list[ModeResult]:
    """Play every mode in every scenario, several at a time: one more than the machine has cores, since some only
    wait."""
    results = [ModeResult(mode) for mode in MODES]
    progress = DemoProgress(len(results) * len(SCENARIOS))
    progress.show("starting workers")
    # The contexts end in reverse: first the workers are killed, then the threads that talked to them end.
    with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool, WorkerProcesses() as processes:
        cells = {
            pool.submit(_play, result.mode, scenario, folder, processes): (result, scenario)
            for scenario in reversed(SCENARIOS)
            for result in results
        }
        try:
            for cell in as_completed(cells):
                result, scenario = cells[cell]
                result.outcomes[scenario.name] = cell.result()
                progress.step(f"{result.mode.title}: {' '.join(scenario.head.split())}")
        finally:
            progress.wipe()
    return results


def _play(mode: DemoMode, scenario: Scenario, folder: Path, processes: WorkerProcesses) -> ScenarioOutcome:
    run = ScenarioRun(mode, scenario.lease, folder / f"{mode.name}.{scenario.name}", processes)
    scenario.play(run)
    return run.finish()


def _print(screen: Screen, results: Sequence[ModeResult]) -> None:
    heads = ["mode", *(scenario.head for scenario in SCENARIOS), "lost", "lets through"]
    for text in draw_table(screen, heads, [_row(result) for result in results]):
        screen.print(text)
    screen.print()
    screen.print("DOUBLED: the customer paid twice.")
    screen.print("LOST: the message was acked, but the card was never charged.")
    screen.print("in doubt: it is unknown whether the card was charged; an operator decides.")
    broken = [f"{result.mode.title}: {name}" for result in results for name in result.broken_promises()]
    if broken:
        screen.print_tagged("FAILED", f"a promise was not kept: {'; '.join(broken)}", "red")
    else:
        screen.print_tagged("ok", "every mode of effectonce kept its promise, and none lost the payment.", "green")


def _row(result: ModeResult) -> list[Cell]:
    cells = [
        Cell(str(result.outcomes[scenario.name]), _colour(result.outcomes[scenario.name])) for scenario in SCENARIOS
    ]
    lost = Cell(str(result.lost), "red" if result.lost else "")
    return [Cell(result.mode.title), *cells, lost, Cell(result.mode.lets_through)]


def _colour(outcome: ScenarioOutcome) -> Colour:
    if outcome.in_doubt:
        return "yellow"
    return "green" if outcome.charges == 1 else "red"


def _document(results: Sequence[ModeResult], seconds: float) -> dict[str, object]:
    return {
        "ok": not any(result.broken_promises() for result in results),
        "seconds": round(seconds, 3),
        "modes": [
            {
                "mode": result.mode.name,
                "title": result.mode.title,
                "promises": result.mode.promise is not None,
                "charges": {scenario.name: result.outcomes[scenario.name].charges for scenario in SCENARIOS},
                "in_doubt": [scenario.name for scenario in SCENARIOS if result.outcomes[scenario.name].in_doubt],
                "lost": result.lost,
                "broken": result.broken_promises(),
                "lets_through": result.mode.lets_through,
            }
            for result in results
        ],
    }
