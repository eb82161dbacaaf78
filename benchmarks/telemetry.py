"""What watching costs a guard: switched off, beside a copy of effectonce without any of it; and switched on."""

from __future__ import annotations

import ast
import functools
import importlib
import io
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

import effectonce as eo
from effectonce.telemetry.logging import EventLogger
from effectonce.telemetry.prometheus import Metrics
from tests.harness import servers

from .guard import blocks_of, charge, fresh, guard
from .measure import Case, Table, in_turn

Open = Callable[[], Any]

BARE = "effectonce_without_telemetry"
FIELDS = ("took", "trace")  # of a `Run`


def telemetry(scale: float) -> Iterator[Table]:
    targets = {
        "effectonce without any telemetry in it": {},
        "telemetry off": {"effectonce without any telemetry in it": 1 / 1.02},
        "Prometheus and logging": {"telemetry off": 1 / 1.15},
        "the same, and a line for each event": {},
    }
    with servers.redis() as redis:
        for name, url, blocks in (("memory", "memory://", 24), ("Redis", redis.url, 20)):
            count = max(3, int(blocks * scale))
            rounds = functools.cache(functools.partial(_in_a_process, url, count))
            cases = [
                Case(each, lambda number, rounds=rounds, each=each: rounds(number)[each], goals, ours=bool(at))  # type: ignore[misc]
                for at, (each, goals) in enumerate(targets.items())
            ]
            yield Table(
                f"{name}, a guarded call, watched",
                "µs of CPU" if name == "memory" else "µs",
                "less",
                cases,
                note=f"the best of {count} blocks, taken in turn; each round is a process of its own, since by luck of "
                "memory layout one and the same code differs by 2 % from one to the next",
                rounds=13,
            )


def _in_a_process(url: str, count: int, number: int) -> dict[str, float]:
    """What `one_process` gives. The keys of all processes are the same, and none may meet another's."""
    url = url if url == "memory://" else f"{url}?namespace=eo{number}"
    command = [sys.executable, "-W", "ignore", "-m", __name__, url, str(count)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def one_process(url: str, count: int) -> dict[str, float]:
    """Microseconds a call, by case."""
    log = io.StringIO()
    logger = logging.Logger("effectonce.benchmark")
    logger.addHandler(logging.StreamHandler(log))

    def connect() -> eo.Store:
        return eo.connect(url, sweep_every=None)

    def watched(level: int) -> eo.Store:
        store = connect()
        log.seek(0)
        log.truncate()
        Metrics(CollectorRegistry()).watch(store)
        EventLogger(logger, level=level).watch(store)
        return store

    with tempfile.TemporaryDirectory() as folder:
        bare = without_telemetry(Path(folder))
        stores: dict[str, tuple[Any, Open]] = {
            "effectonce without any telemetry in it": (bare, lambda: bare.connect(url, sweep_every=None)),
            "telemetry off": (eo, connect),
            "Prometheus and logging": (eo, lambda: watched(logging.INFO)),
            "the same, and a line for each event": (eo, lambda: watched(logging.DEBUG)),
        }
        in_memory = url == "memory://"
        size, clock = (500, time.process_time_ns) if in_memory else (100, time.perf_counter_ns)
        measures = in_turn({each: blocks_of(guarded(*made), size, clock) for each, made in stores.items()}, count)
        return {each: measure(0) for each, measure in measures.items()}


def guarded(module: Any, connect: Open) -> Callable[[], Callable[..., Any]]:
    """Makes a guarded function on a new store."""
    if module is eo:
        return lambda: guard(connect(), charge)
    return lambda: module.once(connect(), scope=fresh(1)[0], key="payment_id")(charge)


def without_telemetry(folder: Path) -> Any:
    """effectonce once more, under another name, with every look at its hooks taken out of the source."""
    source = Path(eo.__file__).parent
    for path in source.rglob("*"):
        target = folder / BARE / path.relative_to(source)
        if path.suffix in (".sql", ".lua", ".py"):
            target.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text()
            if path.suffix == ".py":
                fields = FIELDS if path.parent.name == "core" else ()
                text = ast.unparse(_Bare(fields).visit(ast.parse(text)))
            target.write_text(text)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(BARE)
    finally:
        sys.path.remove(str(folder))


class _Bare(ast.NodeTransformer):
    """Takes out ``if watched: …``, ``if engine.hooks: …``, ``if engine.tracer …``, ``run.emit(…)`` and their fields;
    renames imports."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._fields = fields

    def visit_Import(self, node: ast.Import) -> ast.AST:
        for each in node.names:
            each.name = _renamed(each.name)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if not node.level:
            node.module = _renamed(node.module or "")
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and node.value.startswith("effectonce."):  # what is loaded by its name
            node.value = _renamed(node.value)
        return node

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        test = node.test.values[0] if isinstance(node.test, ast.BoolOp) else node.test
        test = test.left if isinstance(test, ast.Compare) else test
        if isinstance(test, ast.Attribute) and test.attr in ("watched", "hooks", "tracer", *self._fields):
            return node.orelse or ast.Pass()
        if isinstance(test, ast.Name) and test.id == "watched":
            return node.orelse or ast.Pass()
        return node

    def visit_Expr(self, node: ast.Expr) -> Any:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "tell":
            return ast.Pass()
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id in ("watched", "took"):
            return ast.Pass()
        return ast.Pass() if isinstance(target, ast.Attribute) and target.attr in self._fields else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        is_field = isinstance(node.target, ast.Name) and node.target.id in self._fields
        return ast.Pass() if is_field and isinstance(node.value, ast.Constant) else node


def _renamed(module: str) -> str:
    return BARE + module.removeprefix("effectonce") if module.partition(".")[0] == "effectonce" else module


PARTS = {"watched": telemetry}

if __name__ == "__main__":
    print(json.dumps(one_process(sys.argv[1], int(sys.argv[2]))))
