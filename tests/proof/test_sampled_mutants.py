"""Sampled mutation tests: which mutants there are, which are left out, and that the tests near one kill it."""

from __future__ import annotations

import argparse
import ast
from textwrap import dedent

import pytest

from tests.harness.shared import ServerRegistry
from tests.proof.sampled_mutants.__main__ import choose_mutants
from tests.proof.sampled_mutants.checkout_copy import PACKAGE, ROOT, CheckoutCopy
from tests.proof.sampled_mutants.equivalents import EQUIVALENTS
from tests.proof.sampled_mutants.mutations import mutants_below, mutants_of
from tests.proof.sampled_mutants.nearest_tests import FAILED, PASSED, ROOMS, run_tests

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
