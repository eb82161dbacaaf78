"""`make prove`: kill it in every way for ten minutes, and print what was lost, what was doubled, and what that shows.

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

from effectonce.cli.terminal import Screen, progress_bar
from tests.harness import servers
from tests.harness.process import Server
from tests.harness.provider import Provider
from tests.harness.rabbitmq import rabbitmq
from tests.harness.sentinel import sentinel
from tests.proof import explorer, prove_failover, prove_faults, soak
from tests.proof.soak import Tally
from tests.proof.soak_victims import CONTROLS, Mode, Order

USUAL = 600.0  # seconds: of these the shares below are parts, and some are for starting servers
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
EXPLORER = 140.0
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
    allowed: int | None  # how many doubled the mode allows here; None: it is a control arm, and has to break
    in_doubt: int
    bound: str
    seed: str
    seconds: float
    wanted: int = 0  # so many messages there would have been, had the time sufficed
    deliveries: int = 0
    kills: int = 0
    stops: int = 0
    server_kills: int = 0
    broken: list[str] = msgspec.field(default_factory=list)
    detail: dict[str, int] = msgspec.field(default_factory=dict)


def bound(lost: int, trials: int) -> str:
    """What no loss in so many says: at 95 %, fewer than 3 in as many (the rule of three)."""
    return "-" if lost or trials < 3 else f"< 1 in {trials // 3:,}"


def row_of(what: str, mode: str, where: str, report_counts: Tally, seed: str, allowed: int | None) -> Row:
    broken = list(report_counts.violations)
    if allowed is None:
        if not report_counts.lost and not report_counts.doubled:
            broken.append("the control arm lost and doubled nothing: what is counted here proves nothing")
    else:
        if report_counts.lost:
            broken.append(f"{report_counts.lost} lost")
        if report_counts.doubled > allowed:
            broken.append(f"{report_counts.doubled} doubled, and at most {allowed} may be")
    return Row(
        what=what,
        mode=mode,
        where=where,
        messages=report_counts.messages,
        faults=report_counts.kills + report_counts.stops + report_counts.server_kills + report_counts.faults,
        lost=report_counts.lost,
        doubled=report_counts.doubled,
        allowed=allowed,
        in_doubt=report_counts.in_doubt,
        bound=bound(report_counts.lost, report_counts.messages),
        seed=seed,
        seconds=report_counts.seconds,
        deliveries=report_counts.deliveries,
        kills=report_counts.kills,
        stops=report_counts.stops,
        server_kills=report_counts.server_kills,
        broken=broken,
        detail=report_counts.errors,
    )


class Proof:
    """All rows, one after another, each in its share of the time."""

    def __init__(self, seconds: float, seed: int, only: str = "", told: Callable[[float, str], object] | None = None):
        self.scale = seconds / USUAL
        self.seed = seed
        self.only = only
        self.told = told if told is not None else lambda done, text: None
        self.rows: list[Row] = []
        self.crash_points: set[str] = set()  # of the explorer: at which a process was killed
        self.skipped: list[str] = []
        self.failed: list[str] = []
        parts: list[tuple[str, float, Callable[[], object]]] = [
            *((f"soak {mode} {store}", share, self._soaking(mode, store, share)) for mode, store, share in SOAKS),
            *((f"soak control {mode}", 2.0, self._soaking(mode, "files", 2.0)) for mode in CONTROLS),
            ("network L redis", 10.0, self._redis_network),
            ("network LT postgres", 25.0, self._postgres_network),
            ("network L rabbitmq", 15.0, self._rabbitmq_network),
            ("failover L redis", 12.0, self._failover),
            ("explorer", EXPLORER, self._explorer),
        ]
        self._parts = [part for part in parts if only in part[0]]
        self._total = sum(share for _, share, _ in self._parts) or 1.0
        self._before = self._share = 0.0
        self._name = ""

    def run(self) -> list[Row]:
        for name, share, work in self._parts:
            self._name, self._share = name, share
            self._tell(0.0)
            try:
                work()
            except servers.Missing as missing:
                self.skipped.append(f"{name}: {missing}")
            except Exception as error:  # the others are told all the same
                traceback.print_exc()
                self.failed.append(f"{name}: {type(error).__name__}: {error}")
            self._before += self._share
        return self.rows

    def _tell(self, done: float) -> None:
        self.told((self._before + self._share * min(done, 1.0)) / self._total, self._name)

    def _seed(self, *words: str) -> str:
        return "-".join((*words, str(self.seed)))

    # -- processes and servers, killed

    def _soaking(self, mode: Mode, store: str, share: float) -> Callable[[], object]:
        return lambda: self.soak(mode, store, share)

    def soak(self, mode: Mode, store: str, share: float) -> None:
        messages = max(60, round(10_000 * self.scale))
        kills, seconds = max(6, messages // 9), max(2.0, share * self.scale)
        if mode in CONTROLS:  # which must be seen to break, however slow the machine: more kills, and all the time
            messages = max(60, messages // 10)
            kills, seconds = messages // 2, 3600.0
        seed = self._seed(mode.replace(" ", "-"), store)
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="eo-soak-"))
            server = stack.enter_context(SERVERS[store]()) if store in SERVERS else None
            provider = stack.enter_context(Provider()) if mode in ("K", "I") else None
            order = Order(
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
            report_counts = soak.run(order, server, server_kills, self._tell)
            if provider is not None:
                charged = Counter(charge["order"] for charge in provider.charges)
                report_counts.effects = charged.total()
                report_counts.lost = report_counts.messages - len(charged.keys() | set(report_counts.doubts))
                report_counts.doubled = report_counts.effects - len(charged)
        allowed = {"L": report_counts.unrecorded}.get(mode, None if mode in CONTROLS else 0)
        row = row_of("kill -9", f"naive: {mode}" if mode in CONTROLS else mode, store, report_counts, seed, allowed)
        row.wanted = messages
        self.rows.append(row)

    # -- the network

    def _redis_network(self) -> None:
        with servers.redis() as server:
            self._network("L", "redis", prove_faults.leased(server, self._seed("redis"), self._faults(100)))

    def _postgres_network(self) -> None:
        with servers.postgres(durable=True) as server:
            self._network("L", "postgres", prove_faults.leased(server, self._seed("pg", "l"), self._faults(100)))
            report_counts = prove_faults.transactional(server, self._seed("pg", "t"), self._faults(100))
            self._network("T", "postgres", report_counts)
            cut = prove_faults.commits_cut(server, self._seed("pg", "c"), self._faults(300))
            self.rows.append(row_of("COMMIT cut", "T", "postgres", cut, self._seed("pg", "c"), 0))

    def _rabbitmq_network(self) -> None:
        with rabbitmq() as server, tempfile.TemporaryDirectory(prefix="eo-prove-") as folder:
            store = f"sqlite:///{folder}/store.db"
            report_counts = prove_faults.brokered(server, store, self._seed("amqp"), self._faults(60))
            self._network("L", "rabbitmq", report_counts)

    def _faults(self, usual: int) -> int:
        return max(14, round(usual * self.scale))

    def _network(self, mode: str, where: str, report_counts: Tally) -> None:
        allowed = report_counts.unrecorded if mode == "L" else 0
        self.rows.append(row_of("bad network", mode, where, report_counts, str(self.seed), allowed))

    def _failover(self) -> None:
        with sentinel() as shop:
            report_counts = prove_failover.stale(shop, max(20, round(1000 * min(self.scale, 1.0))))
        self.rows.append(row_of("failover", "L", "redis", report_counts, "-", report_counts.unrecorded))

    # -- the model

    def _explorer(self) -> None:
        began, seconds = time.monotonic(), EXPLORER * self.scale

        def told(_: object) -> None:
            self._tell(min((time.monotonic() - began) / seconds, 0.95))

        for found in explorer.explore_all(
            "full" if self.scale >= 0.5 else "short",
            seconds=seconds,
            schedules=round(20_000 * max(self.scale, 0.05)),
            seed=self.seed,
            progress=told,
        ):
            self.crash_points |= found.crash_points
            control = found.mode == "naive"
            broken = [found.broken] if found.broken and not control else []
            if control and not found.broken:
                broken = ["the control arm lost and doubled nothing: what is counted here proves nothing"]
            self.rows.append(
                Row(
                    what="explorer",
                    mode=found.mode,
                    where=found.scenario,
                    messages=found.schedules,
                    faults=found.faults,
                    lost=found.lost,
                    doubled=found.doubled,
                    allowed=None if control else found.doubled if found.mode in ("L", "S") else 0,
                    in_doubt=found.in_doubt,
                    bound=_covered(found),
                    seed="-" if found.seed is None else str(found.seed),
                    seconds=found.seconds,
                    broken=broken,
                )
            )


def _covered(found: explorer.SearchRow) -> str:
    """What a search of the model says: an exhaustive one is no sample."""
    tried = "all" if found.complete else "cut short"
    return f"{bound(found.lost, found.schedules) if found.seed is not None else tried}; faults ≤ {found.max_faults}"


# -- what people see


HEADS = ("how", "mode", "where", "messages", "faults", "lost", "doubled", "in doubt", "lost, at 95 %", "seed", "s")


def shown(rows: Sequence[Row]) -> list[str]:
    """The table, in Markdown: it goes into the documentation as it is."""
    lines = [HEADS, *map(_cells, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEADS))]
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
        "it has to break" if row.allowed is None else row.bound,
        row.seed,
        f"{row.seconds:.0f}",
    )


class Bar:
    """How far the proof is: a bar in a terminal; in a pipe, a line for every part."""

    def __init__(self) -> None:
        self._screen = Screen(sys.stderr)
        self._last = ""

    def show(self, done: float, text: str) -> None:
        if self._screen.live:
            bar = progress_bar(self._screen, done, 30)
            print(f"\r\x1b[K{bar} {done:4.0%}  {text}", end="", file=sys.stderr, flush=True)
        elif text != self._last:
            print(f"{done:4.0%}  {text}", file=sys.stderr, flush=True)
        self._last = text

    def wipe(self) -> None:
        if self._screen.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def files_in_memory() -> Iterator[str]:
    """Servers and ledgers keep their files in memory where there is room: see `soak` on what kill -9 can lose."""
    place, before = Path("/dev/shm"), tempfile.tempdir
    roomy = place.is_dir() and os.access(place, os.W_OK) and shutil.disk_usage(place).free > 2 << 30
    if roomy:
        tempfile.tempdir = str(place)
    try:
        yield "in memory" if roomy else f"in {tempfile.gettempdir()}"
    finally:
        tempfile.tempdir = before


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make prove", description="Kill it in every way, and count.")
    parser.add_argument("--seconds", type=float, default=USUAL, help="about how long (default 600)")
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
        logging.disable()  # faults are what this is about
        try:
            rows = proof.run()
        finally:
            logging.disable(logging.NOTSET)
            bar.wipe()
    took = time.monotonic() - began
    screen = Screen()
    print("\n".join(shown(rows)))
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
