"""A delivery ends at each of 12 crash points, by an exception, a cancellation or SIGKILL, as a first delivery or as a
redelivery, on each of 6 stores: 432 ends, each judged by the promise of mode L."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import effectonce as eo

from .prove_points import CELLS, ENDINGS, POINTS, TURNS, UNRECORDED_POINTS, Outcome, PointsRequest

ROOT = Path(__file__).parents[2]
STORES = ("memory", "sqlite", "redis", "postgres", "mariadb", "dynamodb")

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def points_process(aws_credentials: None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.proof.prove_points"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def address(kind: str, request: pytest.FixtureRequest, folder: Path, name: str) -> str:
    if kind in ("memory", "sqlite"):
        return "memory://" if kind == "memory" else f"sqlite:///{folder}/points.db"
    server: str = request.getfixturevalue(f"{kind}_url")
    if kind == "dynamodb":
        return server.replace("dynamodb://effectonce", f"dynamodb://{name}") + "&timeout=60s&connect_timeout=60s"
    return f"{server}{'&' if '?' in server else '?'}{'namespace' if kind == 'redis' else 'prefix'}={name}"


def test_there_are_432_ends() -> None:
    assert len(CELLS) * len(STORES) == len(POINTS) * len(STORES) * len(ENDINGS) * len(TURNS) == 12 * 6 * 3 * 2


@pytest.mark.quick_on("postgres")
@pytest.mark.parametrize("kind", STORES)
def test_wherever_a_delivery_ends_nothing_is_lost_and_only_an_unrecorded_effect_repeats(
    kind: str, points_process: subprocess.Popen[str], tmp_path: Path, unique_name: str, request: pytest.FixtureRequest
) -> None:
    """F01, F02, F03, F04, F16, F17, F58."""
    url = address(kind, request, tmp_path, unique_name)
    if kind != "memory":
        with eo.connect(url, sweep_every=None) as store:
            store.migrate()
    assert points_process.stdin is not None
    assert points_process.stdout is not None
    print(msgspec.json.encode(PointsRequest(url, f"{tmp_path}/ledger")).decode(), file=points_process.stdin, flush=True)
    outcome = msgspec.json.decode(points_process.stdout.readline(), type=Outcome)

    assert outcome.missed == [], "every delivery ended at its point"
    assert [key for key, effects in outcome.effects.items() if effects == 0] == [], "nothing is lost"
    for cell in CELLS:
        effects = outcome.effects[cell.key]
        killed = cell.ending == "SIGKILL"
        # A store in memory is gone with its process.
        forgotten = kind == "memory" and killed and cell.point in ("complete.after", "returned")
        if cell.point not in UNRECORDED_POINTS and not forgotten:
            assert effects == 1, cell
        elif cell.point == "effect" or killed:
            assert effects == 2, cell
        else:  # the completion goes out all the same where only its caller was cancelled
            assert effects <= 2, cell
