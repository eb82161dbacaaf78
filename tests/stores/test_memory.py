"""The memory store keeps the contract, and the contract's suite has teeth: broken stores fail it."""

import subprocess
import sys

import pytest

from effectonce.errors import InvalidOption
from effectonce.stores.memory import MemoryBackend
from effectonce.testing.clock import EPOCH, ManualClock
from effectonce.testing.suites import store_cases, store_suite
from tests.stores.mutants import MUTANTS, Defect, Mutant, MutantBackend, Notifying

TestContract = store_suite(lambda: MemoryBackend(clock=ManualClock()))
TestContractOnTheSystemClock = store_suite(MemoryBackend)
TestContractWithNotifications = store_suite()  # on the fixture below


CASES = {str(case): case for case in store_cases()}


@pytest.fixture
def backend() -> MutantBackend:
    return MutantBackend(Notifying, ManualClock())


@pytest.mark.parametrize(("mutant", "case"), MUTANTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_store_fails_the_case_about_it(mutant: type[Mutant], case: str) -> None:
    with pytest.raises((AssertionError, Defect)):  # noqa: PT012
        for _ in range(50):  # a race is lost now and then; most mutants fail at once
            CASES[case].run(MutantBackend(mutant, ManualClock()), CASES[case].colours[0])


def test_every_case_has_a_mutant_that_fails_it() -> None:
    """A case that nothing can fail proves nothing."""
    assert set(CASES) == {case for _, case in MUTANTS}


def test_a_skipped_case_must_exist() -> None:
    with pytest.raises(ValueError, match="no_such_case"):
        store_suite(MemoryBackend, skip=("no_such_case",))


def test_every_case_of_the_suite_has_its_sentence_as_name() -> None:
    assert len(CASES) > 70
    assert all(name.isidentifier() and name.count("_") >= 2 for name in CASES)


def test_the_suite_imports_no_pytest() -> None:
    """It ships with the product, where pytest may not be installed."""
    code = "import sys, effectonce.testing.suites; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock()
    assert (clock.now(), clock.monotonic()) == (EPOCH, 0.0)
    assert clock.advance("1.5s") == EPOCH + 1_500_000
    assert clock.advance_micros(1) == clock.now() == EPOCH + 1_500_001
    assert clock.monotonic() == 1.500001
    with pytest.raises(InvalidOption):
        clock.advance("yesterday")
    with pytest.raises(ValueError, match="back"):
        clock.advance_micros(-1)
