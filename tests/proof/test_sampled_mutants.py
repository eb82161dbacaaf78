"""Sampled mutation tests: which mutants there are, which are left out, and that the tests near one kill it."""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.harness.shared import ServerRegistry
from tests.proof.sampled_mutants import reach_cache
from tests.proof.sampled_mutants.__main__ import choose_mutants
from tests.proof.sampled_mutants.checkout_copy import PACKAGE, ROOT, CheckoutCopy
from tests.proof.sampled_mutants.equivalents import EQUIVALENTS, SIZES, is_explained
from tests.proof.sampled_mutants.mutations import mutants_below, mutants_of
from tests.proof.sampled_mutants.nearest_tests import ROOMS
from tests.proof.sampled_mutants.pytest_process import FAILED, PASSED, run_tests
from tests.proof.sampled_mutants.reach_cache import ReachCache

SOURCE = ROOT / PACKAGE


def changes(source: str) -> list[str]:
    """The lines that take the place of the changed ones."""
    text = dedent(source).encode() + b"\n"
    return [mutant.after for mutant in mutants_of("file.py", text)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a == b", ["x = a != b"]),
        ("x = (a) < (b)", ["x = (a) <= (b)", "x = (a) >= (b)"]),
        ("x = a is not None", ["x = a is None"]),
        ("x = a not in b", ["x = a in b"]),
        ("x = a < b < c", ["x = a <= b < c", "x = a >= b < c", "x = a < b <= c", "x = a < b >= c"]),
        ("x = time.monotonic() >= a", ["x = time.monotonic() < a"]),
        (
            "now = loop.time() - 1.5\nx = now >= a",
            ["now = loop.time() + 1.5", "now = loop.time() - 3.0", "x = now < a"],
        ),
        ("x = a and b", ["x = a or b"]),
        ("x = not a", ["x = a"]),
        ("x = a + b", ["x = a - b"]),
        ("x += y", ["x -= y"]),
        ("x = 'ü' + y", []),
        ("x = y('ü', 1)", ["x = y('ü', 2)"]),
        ("x = 0, 19, 20", ["x = 1, 19, 20", "x = 0, 20, 20", "x = 0, 19, 40"]),
        ("x = 0.0, 1.5", ["x = 1.0, 1.5", "x = 0.0, 3.0"]),
        ("x = True", ["x = False"]),
        ("if a(): b = c", ["if not (a()): b = c"]),
        ("while a: b = c", ["while not (a): b = c"]),
        ("x = [a for a in b if a()]", ["x = [a for a in b if not (a())]"]),
        ("call(x)", ["pass"]),
        ("async def f(): await call(x)", ["async def f(): pass"]),
        ("time.sleep(1)", ["pass"]),
        ("x.y = z", ["pass"]),
        ("def f(): return x", ["def f(): return None"]),
        ("def f(): return None", []),
        ("def f(): raise X(1)", ["def f(): pass", "def f(): raise X(2)"]),
    ],
)
def test_what_a_mutant_changes(source: str, expected: list[str]) -> None:
    assert changes(source) == expected


def test_what_a_mutant_changes_is_run_by_an_import_or_by_a_call() -> None:
    source = b"""
limit = 7
class Buffer:
    size = 7
    @cached(7)
    async def read(self, size=7):
        return self.take(7)
"""
    assert [mutant.in_function for mutant in mutants_of("file.py", source) if mutant.kind == "number"] == [
        *(False, False, False, False),
        True,
    ]


@pytest.mark.parametrize(
    "source",
    [
        "log.info('text', 1)",
        "if TYPE_CHECKING:\n    x = 1",
        "def f(x: Literal[1]) -> Literal[2]: ...",
        "def __repr__(self):\n    return f(1)",
        "@overload\ndef f(x=1): ...",
        "class X(Struct, frozen=True):\n    y: int",
        "@dataclass(frozen=True)\nclass X:\n    y: int",
        "assert x == 1",
        "x = f'{1 + 2}'",
        "x = show(y, 300)",
        "x = zip(a, b, strict=True)",
        "WAIT_SECONDS: Final = 30",
        "if sys.version_info >= (4, 0):\n    x = 1",
        "if sys.version_info >= (3, 0):\n    x = y\nelse:\n    x = 1",
        "T_co = TypeVar('T_co', covariant=True)",
        "class X:\n    def __init__(self, y):\n        self.y = y",
        "class X:\n    def __init__(self, y):\n        self.y: int = y",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert changes(source) == []


def test_every_room_has_code_and_tests() -> None:
    for room, tests in ROOMS.items():
        assert any((SOURCE / room).rglob("*.py")), room
        assert all((ROOT / "tests" / path).exists() for path in tests), room


def test_a_sample_is_valid_python_and_the_same_for_the_same_seed() -> None:
    options = argparse.Namespace(at=None, rooms=["guard", "relay"], seed=7, n=50)
    sample = choose_mutants(options)
    assert len(set(sample)) == 50
    assert choose_mutants(options) == sample
    for mutant in sample:
        ast.parse(mutant.apply((SOURCE / mutant.path).read_bytes()))


def test_every_equivalent_is_still_there() -> None:
    """Where its line has changed since, look at it again."""
    left = set(EQUIVALENTS)
    for path in {path for path, _, _ in EQUIVALENTS}:
        source = (SOURCE / path).read_bytes() if (SOURCE / path).exists() else b""
        for mutant in mutants_of(path, source):
            left.discard(mutant.identity)
    assert not left


def test_every_size_is_still_there() -> None:
    for path, names in SIZES.items():
        mutants = [mutant for mutant in mutants_of(path, (SOURCE / path).read_bytes()) if is_explained(mutant)]
        assert {mutant.before.partition(" ")[0].rstrip(":") for mutant in mutants} >= set(names.split()), path


@pytest.mark.long
def test_the_tests_near_a_mutant_notice_it() -> None:
    """In a copy: the checkout stays as it is, and so does the copy when the mutant is gone."""
    mutant = next(m for m in mutants_below(SOURCE, ("values/fingerprint.py",)) if m.kind == "return value")
    original = (SOURCE / mutant.path).read_bytes()
    registry = ServerRegistry()
    copy = CheckoutCopy()
    try:
        arguments = (copy, registry.listen(), "gw0", ["tests/values/test_fingerprint.py"])
        with copy.mutated(mutant):
            run = run_tests(*arguments)
            assert (run.exit_code, run.first_failure.partition("::")[0]) == (
                FAILED,
                "tests/values/test_fingerprint.py",
            ), run.output
            assert (SOURCE / mutant.path).read_bytes() == original
        run = run_tests(*arguments)
        assert run.exit_code == PASSED, run.output
    finally:
        copy.close()
        registry.close()


@pytest.mark.long
def test_what_the_tests_reach_is_measured_again_when_they_or_the_code_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach_cache, "FOLDER", tmp_path)
    file = "tests/values/test_durations.py"
    registry = ServerRegistry()
    copy = CheckoutCopy()
    try:
        cache = ReachCache(copy.root)
        assert cache.missing([file]) == [file]
        cache.measure([file], copy, registry.listen(), "gw0")
        assert ReachCache(copy.root).missing([file]) == []
        reach = cache.load([file])
        assert set(reach.tests["values/durations.py"].popitem()[1]) <= {"", *reach.seconds}
        assert {test.partition("::")[0] for test in reach.seconds} == {file}
        for changed in (copy.package / "values/durations.py", copy.root / file):
            original = changed.read_bytes()
            changed.write_bytes(original + b"#")
            assert ReachCache(copy.root).missing([file]) == [file]
            changed.write_bytes(original)
        (copy.package / "values/fingerprint.py").write_bytes(b"")
        (copy.root / "tests/worker/bench.py").write_bytes(b"")
        assert ReachCache(copy.root).missing([file]) == [], "none of its tests uses these"
    finally:
        copy.close()
        registry.close()


def test_a_test_whose_cases_a_mutant_renames_still_runs(tmp_path: Path) -> None:
    (tmp_path / "test_limit.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('size', [7, 8])\n"
        "def test_size(size): pass\n"
        "@pytest.mark.parametrize('size', [7, 8])\n"
        "def test_other(size): pass\n"
    )
    names = tmp_path / "names"
    names.write_text("test_limit.py::test_size[8]\ntest_limit.py::test_other[9]")
    command = (sys.executable, "-m", "pytest", "-v", "--rootdir=.", "-p", "tests.proof.sampled_mutants.selection")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EFFECTONCE_TESTS": str(names)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert re.findall(r"::(\S+) PASSED", run.stdout) == ["test_size[8]", "test_other[7]", "test_other[8]"], run.stdout
