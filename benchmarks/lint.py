"""The checker: how much of the corpus it gets right, and how fast it reads."""

from __future__ import annotations

import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from effectonce_lint import engine
from effectonce_lint.config import Config
from lint.tests.labels import FAMILIES, Labelled, design_files, designed, looked_at, scores, sources

from .measure import Case, Table, rate

REQUIRED = 0.95
UNCACHED, CACHED = 20_000, 100_000
PACKAGES = (
    "celery",
    "kombu",
    "dramatiq",
    "taskiq",
    "pika",
    "aio_pika",
    "faststream",
    "fastapi",
    "sqlalchemy",
    "django",
)


def corpus(scale: float) -> Iterator[Table]:
    consumers: list[Labelled] = [each for path in sources() for each in looked_at(path)]
    consumers += [each for path in design_files() for each in designed(path)]
    by_family = scores(consumers)
    for figure in ("recall", "precision"):
        cases = [Case("required", lambda _: REQUIRED)]
        for family, score in by_family.items():
            value: float = getattr(score, figure)
            name = f"{family}, {FAMILIES[family]}"
            cases.append(Case(name, lambda _, value=value: value, targets={"required": 1.0}, ours=True))  # type: ignore[misc]
        note = f"{len(consumers)} labelled consumers and queues"
        yield Table(f"Checker: {figure} by family of rules", "of 1", "more", cases, note=note, rounds=1)


def speed(scale: float) -> Iterator[Table]:
    """Installed packages that are full of consumers, copied so that nothing else is followed."""
    folder = Path(tempfile.mkdtemp(prefix="effectonce-lint-"))
    try:
        installed = Path(sysconfig.get_path("purelib"))
        for name in PACKAGES[: max(2, round(len(PACKAGES) * scale))]:
            if (installed / name).is_dir():
                shutil.copytree(installed / name, folder / "code" / name, ignore=shutil.ignore_patterns("*.pyc"))
        config = Config(cache_dir=str(folder / "cache"))
        code = [str(folder / "code")]
        lines = engine.run(code, config).lines
        cases = [
            Case("required without cache", lambda _: UNCACHED),
            Case("required with cache", lambda _: CACHED),
            Case(
                "without cache",
                lambda _: rate(lines, lambda: engine.run(code, config, cache=False)),
                targets={"required without cache": 1.0},
                ours=True,
            ),
            Case(
                "with cache",
                lambda _: rate(lines, lambda: engine.run(code, config)),
                targets={"required with cache": 1.0},
                ours=True,
            ),
        ]
        note = f"{lines:,} lines of {', '.join(PACKAGES[:4])} and others"
        yield Table("Checker: lines a second", "lines/s", "more", cases, note=note, rounds=3)
    finally:
        shutil.rmtree(folder)


PARTS = {"corpus": corpus, "speed": speed}
