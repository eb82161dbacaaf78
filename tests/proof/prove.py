"""`make prove`: kill processes and servers in every way for ten minutes, and print what was lost and doubled.

``python -m tests.proof.prove [--seconds 600] [--seed 1] [--only WORD] [--json FILE]``; exit code 1 where a promise of
DESIGN's table of modes is broken, or where a control arm, which must break it, does not.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from effectonce.cli.tables import make_console
from effectonce.display.terminal import Screen
from tests.harness import installed, servers
from tests.harness.process import Server
from tests.harness.provider import Provider
from tests.harness.rabbitmq import rabbitmq
from tests.harness.sentinel import sentinel
from tests.proof import explorer, prove_failover, prove_faults, prove_long, soak
from tests.proof.soak import Tally
from tests.proof.soak_victims import CONTROLS, Mode, SoakPlan

USUAL_SECONDS = 600.0  # the shares below are parts of this; the rest is for starting servers
SOAKS: tuple[tuple[Mode, str, float], ...] = (
    ("L", "sqlite", 30),
    ("L", "redis", 40),
    ("L", "postgres", 40),
    ("L", "mariadb", 40),
    ("T", "sqlite", 30),
    ("T", "postgres", 40),
    ("T", "mariadb", 40),
    ("K", "sqlite", 12),
    ("K", "postgres", 12),
    ("K", "mariadb", 12),
    ("I", "sqlite", 12),
    ("I", "postgres", 12),
    ("I", "mariadb", 12),
)
EXPLORER_SECONDS = 140.0
LONG_SCALE = 6.0  # from an hour on
SERVERS: dict[str, Callable[[], Server]] = {
    "redis": lambda: servers.redis("--appendonly", "yes", "--appendfsync", "always"),
    "postgres": lambda: servers.postgres(durable=True),
    "mariadb": lambda: servers.mariadb(durable=True),
}


class Row(Struct):
    """One line of the table."""

    what: str
    mode: str
    where: str
    messages: int
    faults: int
    lost: int
    doubled: int
    allowed: int | None  # how many doubled effects the mode allows here; None: a control arm, which must break
    in_doubt: int
    bound: str
    seed: str
    seconds: float
    wanted: int = 0  # how many messages were planned, if the time suffices
    deliveries: int = 0
    kills: int = 0
    stops: int = 0
    server_kills: int = 0
    broken: list[str] = msgspec.field(default_factory=list)
    detail: dict[str, int] = msgspec.field(default_factory=dict)


def bound(lost: int, trials: int) -> str:
    """Return the bound that no loss in so many trials gives: at 95 %, fewer than 3 in as many (the rule of three)."""
    return "-" if lost or trials < 3 else f"< 1 in {trials // 3:,}"


def make_row(what: str, mode: str, where: str, tally: Tally, seed: str, allowed: int | None) -> Row:
    broken = list(tally.violations)
    if allowed is None:
        if not tally.lost and not tally.doubled:
            broken.append("the control arm lost and doubled nothing, so the count proves nothing")
    else:
        if tally.lost:
            broken.append(f"{tally.lost} lost")
        if tally.doubled > allowed:
            broken.append(f"{tally.doubled} doubled, and at most {allowed} may be")
    return Row(
        what=what,
        mode=mode,
        where=where,
        messages=tally.messages,
        faults=tally.kills + tally.stops + tally.server_kills + tally.faults,
        lost=tally.lost,
        doubled=tally.doubled,
        allowed=allowed,
        in_doubt=tally.in_doubt,
        bound=bound(tally.lost, tally.messages),
        seed=seed,
        seconds=tally.seconds,
        deliveries=tally.deliveries,
        kills=tally.kills,
        stops=tally.stops,
        server_kills=tally.server_kills,
        broken=broken,
        detail=tally.errors,
    )


class Proof:
    """Runs every part, one after another, each in its share of the time, and collects the rows."""

    def __init__(
        self, seconds: float, seed: int, only: str = "", progress: Callable[[float, str], object] | None = None
    ):
        self.scale = seconds / USUAL_SECONDS
        self.seed = seed
        self.only = only
        self.progress = progress if progress is not None else lambda done, text: None
        self.rows: list[Row] = []
        self.crash_points: set[str] = set()  # at which the explorer killed a process
        self.skipped: list[str] = []
        self.failed: list[str] = []
        parts: list[tuple[str, float, Callable[[], object]]] = [
            *((f"soak {mode} {store}", share, self._soak_part(mode, store, share)) for mode, store, share in SOAKS),
            *((f"soak control {mode}", 2.0, self._soak_part(mode, "files", 2.0)) for mode in CONTROLS),
            ("network L redis", 10.0, self._redis_network),
            ("network LT postgres", 25.0, self._postgres_network),
            ("network L rabbitmq", 15.0, self._rabbitmq_network),
            ("failover L redis", 12.0, self._failover),
            ("explorer", EXPLORER_SECONDS, self._explorer),
            *self._long_parts(),
        ]
        self._parts = [part for part in parts if only in part[0]]
        self._total = sum(share for _, share, _ in self._parts) or 1.0
        self._before = self._share = 0.0
        self._name = ""

    def run(self) -> list[Row]:
        for name, share, work in self._parts:
            self._name, self._share = name, share
            self._report_progress(0.0)
            try:
                work()
            except installed.Missing as missing:
                self.skipped.append(f"{name}: {missing}")
            except Exception as error:  # the other parts run all the same
                traceback.print_exc()
                self.failed.append(f"{name}: {type(error).__name__}: {error}")
            self._before += self._share
        return self.rows

    def _report_progress(self, done: float) -> None:
        self.progress((self._before + self._share * min(done, 1.0)) / self._total, self._name)

    def _seed(self, *words: str) -> str:
        return "-".join((*words, str(self.seed)))

    # -- processes and servers, killed

    def _soak_part(self, mode: Mode, store: str, share: float) -> Callable[[], object]:
        return lambda: self.soak(mode, store, share)

    def soak(self, mode: Mode, store: str, share: float) -> None:
        messages = max(60, round(10_000 * self.scale))
        kills, seconds = max(6, messages // 9), max(2.0, share * self.scale)
        if mode in CONTROLS:  # it must break, however slow the machine: more kills, and no time limit
            messages = max(60, messages // 10)
            kills, seconds = messages // 2, 3600.0
        seed = self._seed(mode.replace(" ", "-"), store)
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="eo-soak-"))
            server = stack.enter_context(SERVERS[store]()) if store in SERVERS else None
            provider = stack.enter_context(Provider()) if mode in ("K", "I") else None
            plan = SoakPlan(
                mode=mode,
                url=server.url if server is not None else f"sqlite:///{folder}/soak.db",
                folder=folder,
                seed=seed,
                messages=messages,
                kills=kills,
                seconds=seconds,
                provider=provider.url if provider is not None else "",
            )
            server_kills = 0 if server is None else 3 if self.scale >= 1 else 1
            tally = soak.run(plan, server, server_kills, self._report_progress)
            if provider is not None:
                charged = Counter(charge["order"] for charge in provider.charges)
                tally.effects = charged.total()
                tally.lost = tally.messages - len(charged.keys() | set(tally.doubts))
                tally.doubled = tally.effects - len(charged)
        allowed = {"L": tally.unrecorded}.get(mode, None if mode in CONTROLS else 0)
        row = make_row("kill -9", f"naive: {mode}" if mode in CONTROLS else mode, store, tally, seed, allowed)
        row.wanted = messages
        self.rows.append(row)

    # -- the network

    def _redis_network(self) -> None:
        with servers.redis() as server:
            self._network("L", "redis", prove_faults.run_leased(server, self._seed("redis"), self._scale_faults(100)))

    def _postgres_network(self) -> None:
        with servers.postgres(durable=True) as server:
            self._network(
                "L", "postgres", prove_faults.run_leased(server, self._seed("pg", "l"), self._scale_faults(100))
            )
            tally = prove_faults.run_transactional(server, self._seed("pg", "t"), self._scale_faults(100))
            self._network("T", "postgres", tally)
            cut = prove_faults.run_with_cut_commits(server, self._seed("pg", "c"), self._scale_faults(300))
            self.rows.append(make_row("COMMIT cut", "T", "postgres", cut, self._seed("pg", "c"), 0))

    def _rabbitmq_network(self) -> None:
        with rabbitmq() as server, tempfile.TemporaryDirectory(prefix="eo-prove-") as folder:
            store = f"sqlite:///{folder}/store.db"
            tally = prove_faults.run_worker(server, store, self._seed("amqp"), self._scale_faults(60))
            self._network("L", "rabbitmq", tally)

    def _scale_faults(self, usual: int) -> int:
        return max(14, round(usual * self.scale))

    def _network(self, mode: str, where: str, tally: Tally) -> None:
        allowed = tally.unrecorded if mode == "L" else 0
        self.rows.append(make_row("bad network", mode, where, tally, str(self.seed), allowed))

    def _failover(self) -> None:
        with sentinel() as shop:
            tally = prove_failover.run_stale_failover(shop, max(20, round(1000 * min(self.scale, 1.0))))
        self.rows.append(make_row("failover", "L", "redis", tally, "-", tally.unrecorded))

    # -- order and clusters: where there is an hour, or where they are named

    def _long_parts(self) -> Iterator[tuple[str, float, Callable[[], object]]]:
        for part in prove_long.PARTS:
            if self.scale >= LONG_SCALE or (self.only and self.only in part.name):
                yield part.name, part.share, self._long_part(part)

    def _long_part(self, part: prove_long.LongPart) -> Callable[[], object]:
        def run() -> None:
            seed = self._seed(*part.where.replace(",", "").split())
            wanted = max(part.least, round(part.messages * self.scale))
            with tempfile.TemporaryDirectory(prefix="eo-prove-") as folder:
                tally = part.run(folder, seed, wanted, part.share * self.scale, self._report_progress)
            allowed = None if part.must_lose else tally.unrecorded
            self.rows.append(make_row(part.what, part.mode, part.where, tally, seed, allowed))
            self.rows[-1].wanted = wanted

        return run

    # -- the model

    def _explorer(self) -> None:
        began, seconds = time.monotonic(), EXPLORER_SECONDS * self.scale

        def report_progress(_: object) -> None:
            self._report_progress(min((time.monotonic() - began) / seconds, 0.95))

        for search in explorer.explore_all(
            "full" if self.scale >= 0.5 else "short",
            seconds=seconds,
            schedules=round(20_000 * max(self.scale, 0.05)),
            seed=self.seed,
            progress=report_progress,
        ):
            self.crash_points |= search.crash_points
            control = search.mode == "naive"
            broken = [search.broken] if search.broken and not control else []
            if control and not search.broken:
                broken = ["the control arm lost and doubled nothing, so the count proves nothing"]
            self.rows.append(
                Row(
                    what="explorer",
                    mode=search.mode,
                    where=search.scenario,
                    messages=search.schedules,
                    faults=search.faults,
                    lost=search.lost,
                    doubled=search.doubled,
                    allowed=None if control else search.doubled if search.mode in ("L", "S") else 0,
                    in_doubt=search.in_doubt,
                    bound=_describe_coverage(search),
                    seed="-" if search.seed is None else str(search.seed),
                    seconds=search.seconds,
                    broken=broken,
                )
            )


def _describe_coverage(search: explorer.SearchRow) -> str:
    """Describe the coverage of a search of the model: an exhaustive one is not a sample."""
    tried = "all" if search.complete else "cut short"
    return f"{bound(search.lost, search.schedules) if search.seed is not None else tried}; faults ≤ {search.max_faults}"


# -- the output


COLUMNS = ("how", "mode", "where", "messages", "faults", "lost", "doubled", "in doubt", "lost, at 95 %", "seed", "s")


def format_table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table, in Markdown, as the documentation has it."""
    lines = [COLUMNS, *map(_cells, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS))]
    padded = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    rule = "-|-".join("-" * width for width in widths)
    return [f"| {line} |" for line in (padded[0], rule, *padded[1:])]


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.what,
        row.mode,
        row.where,
        f"{row.messages:,}",
        f"{row.faults:,}",
        f"{row.lost:,}",
        f"{row.doubled:,}{f' of {row.allowed:,}' if row.allowed else ''}",
        f"{row.in_doubt:,}",
        "must break" if row.allowed is None else row.bound,
        row.seed,
        f"{row.seconds:.0f}",
    )


class Bar:
    """Shows the progress of the proof: a bar in a terminal; in a pipe, a line for every part."""

    def __init__(self) -> None:
        self._screen = Screen(sys.stderr)
        self._last = ""
        self._bar = Progress(
            BarColumn(30),
            TaskProgressColumn(),
            TextColumn("{task.description}", markup=False),
            console=make_console(self._screen),
            transient=True,
            disable=not self._screen.live,
            redirect_stdout=False,
        )
        self._proof = self._bar.add_task("", total=1.0)
        self._bar.start()

    def show(self, done: float, text: str) -> None:
        self._bar.update(self._proof, completed=done, description=text)
        if not self._screen.live and text != self._last:
            print(f"{done:4.0%}  {text}", file=sys.stderr, flush=True)
        self._last = text

    def wipe(self) -> None:
        self._bar.stop()


@contextmanager
def files_in_memory() -> Iterator[str]:
    """Let servers and ledgers keep their files in memory where there is room: `soak` says what kill -9 can lose."""
    memory, before = Path("/dev/shm"), tempfile.tempdir
    has_room = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 << 30
    if has_room:
        tempfile.tempdir = str(memory)
    try:
        yield "in memory" if has_room else f"in {tempfile.gettempdir()}"
    finally:
        tempfile.tempdir = before


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make prove", description="Kill processes and servers in every way, and count the effects."
    )
    parser.add_argument("--seconds", type=float, default=USUAL_SECONDS, help="about how long (default 600)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", default="", metavar="WORD", help="parts whose name contains this: 'soak T', 'explorer'"
    )
    parser.add_argument("--json", metavar="FILE", help="write every figure there, too")
    options = parser.parse_args(arguments)
    began, load = time.monotonic(), os.getloadavg()[0]
    bar = Bar()
    with files_in_memory() as where:
        proof = Proof(options.seconds, options.seed, options.only, bar.show)
        logging.disable()  # faults are expected here
        try:
            rows = proof.run()
        finally:
            logging.disable(logging.NOTSET)
            bar.wipe()
    took = time.monotonic() - began
    screen = Screen()
    print("\n".join(format_table(rows)))
    broken = [(row, why) for row in rows for why in row.broken]
    for row, why in broken:
        screen.print_tagged("broken", f"{row.what}, {row.mode}, {row.where}: {why}", "red")
    short = [row for row in rows if row.messages < row.wanted]
    if short:
        named = ", ".join(f"{row.mode} {row.where}" for row in short)
        text = f"fewer than {short[0].wanted:,} messages in their time: {named}; try LONG=1"
        screen.print_tagged("short", text, "yellow")
    for reason in proof.failed:
        screen.print_tagged("failed", reason, "red")
    for reason in proof.skipped:
        screen.print_tagged("not run", reason, "yellow")
    total = Counter[str]()
    for row in rows:
        total.update(kills=row.kills, stops=row.stops, server_kills=row.server_kills, deliveries=row.deliveries)
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, seed {options.seed}, {took:.0f} s on {os.cpu_count()} cores "
        f"(load {load:.1f} at the start), files {where}: {total['deliveries']:,} deliveries, {total['kills']:,} kills "
        f"of processes, {total['stops']:,} stops, {total['server_kills']:,} kills of servers. In mode L, doubled is of "
        "so many runs that ended without a recorded success."
    )
    if proof.crash_points:
        searched = [row for row in rows if row.what == "explorer"]
        print(
            f"explorer: {sum(row.messages for row in searched):,} schedules, of which "
            f"{sum(row.messages for row in searched if row.seed != '-'):,} at random; processes were killed at "
            f"{len(proof.crash_points)} crash points."
        )
    if options.json:
        facts: dict[str, Any] = {
            "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "seed": options.seed,
            "seconds": round(took, 1),
            "cores": os.cpu_count(),
            "load": load,
            "rows": rows,
            "failed": proof.failed,
            "not_run": proof.skipped,
        }
        Path(options.json).write_bytes(msgspec.json.format(msgspec.json.encode(facts)) + b"\n")
    holes = proof.skipped and os.environ.get("CI", "").lower() in ("true", "1")
    return 1 if broken or proof.failed or holes else 0


if __name__ == "__main__":
    sys.exit(main())
