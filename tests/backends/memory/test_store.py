"""The memory store keeps the contract, and the contract's suite has teeth: broken stores fail it."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from effectonce.backends.memory.store import MemoryBackend, MemoryPort
from effectonce.core.drive import drive
from effectonce.errors import InvalidOption
from effectonce.record import Answer, Claim, Remember, Settlement
from effectonce.testing.clock import EPOCH, ManualClock
from effectonce.testing.suites import store_cases, store_suite
from tests.backends.store_mutants import MUTANTS, Defect, Mutant, MutantBackend, Notifying

TestContract = store_suite(lambda: MemoryBackend(clock=ManualClock()))
TestContractOnTheSystemClock = pytest.mark.quick_once(store_suite(MemoryBackend))
TestContractWithNotifications = store_suite()  # on the fixture below


CASES = {str(case): case for case in store_cases()}


@pytest.fixture
def backend() -> MutantBackend:
    return MutantBackend(Notifying, ManualClock())


@pytest.mark.quick_once
@pytest.mark.parametrize(("mutant", "case"), MUTANTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_store_fails_the_case_about_it(mutant: type[Mutant], case: str) -> None:
    with pytest.raises((AssertionError, Defect)):  # noqa: PT012
        for _ in range(50):  # a race is lost now and then; most mutants fail at once
            CASES[case].run(MutantBackend(mutant, ManualClock()), CASES[case].port_kinds[0])


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


# -- claims without the lock


def asked(port: MemoryPort, owner: bytes, key: str = "k") -> Answer:
    token = port.first("s", key, owner, 60_000_000, 1_000, False, b"")
    answer: Any = Answer("claimed", token, 1) if token else port.claim(Claim("s", key, owner, 60_000_000, 1_000))
    return answer


def meanwhile(port: MemoryPort, happens: Callable[[], object]) -> None:
    """Let it happen once, after the next claim has read the clock and before it does anything with it."""
    ticks, todo = port._ticks, [happens]

    def read() -> int:
        now = ticks()
        if todo:
            todo.pop()()
        return now

    port._ticks = read


def expired(port: MemoryPort, clock: ManualClock, key: str = "k") -> Answer:
    """Claim, finish and outlive a record of ``key``; it is still there, for a sweep to delete."""
    answer = asked(port, b"before", key)
    assert port.settle(Settlement("s", key, b"before", answer.token, "done", 1)) is True
    clock.advance_micros(1)
    return answer


def test_of_two_that_find_a_key_new_one_gets_it() -> None:
    """F14"""
    port, other = (MemoryPort(backend) for backend in [MemoryBackend()] * 2)
    asked(port, b"another", "so that there is a scope")
    meanwhile(port, lambda: asked(other, b"rival"))
    assert asked(port, b"mine").kind == "in_progress"
    assert port._backend.scopes["s"]["k"].owner == b"rival"


def test_a_claim_survives_that_its_scope_is_swept_away() -> None:
    """The sweeper deletes the last record of a scope while a claim of another key is on its way into it (F26)."""
    clock = ManualClock()
    port, sweeper = (MemoryPort(backend) for backend in [MemoryBackend(clock=clock)] * 2)
    expired(port, clock, "old")
    meanwhile(port, lambda: drive(sweeper.sweep(10)))
    answer = asked(port, b"mine")
    assert answer.kind == "claimed"
    record = drive(port.get("s", "k"))
    assert record is not None
    assert (record.owner, record.token) == (b"mine", answer.token)


def test_a_claim_that_was_overtaken_by_a_whole_life_of_its_key_gets_a_higher_token() -> None:
    """It read the clock first; before it came, another claimed, finished, expired and was swept (F69)."""
    clock = ManualClock()
    port, other = (MemoryPort(backend) for backend in [MemoryBackend(clock=clock)] * 2)
    asked(port, b"another", "so that there is a scope")
    tokens = []

    def live_and_die() -> None:
        clock.advance_micros(5)
        tokens.append(expired(other, clock).token)
        drive(other.sweep(10))

    meanwhile(port, live_and_die)
    answer = asked(port, b"mine")
    assert (answer.kind, answer.attempts) == ("claimed", 1)
    assert answer.token > tokens[0]


def test_during_a_deletion_a_claim_waits_for_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    port = MemoryPort(MemoryBackend())
    asked(port, b"another", "so that there is a scope")
    monkeypatch.setattr(port._backend, "quiet", None)
    with port._backend.lock:
        thread = threading.Thread(target=asked, args=(port, b"mine"))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert "k" not in port._backend.scopes["s"]
    thread.join()
    assert asked(port, b"mine").kind == "claimed"


@pytest.mark.parametrize(
    "op", [Remember("s", "k", 1_000), Claim("s", "k", b"mine", 60_000_000, 1_000)], ids=lambda op: type(op).__name__
)
def test_what_finds_no_record_under_the_lock_does_not_overwrite_a_claim_that_comes_just_then(op: Any) -> None:
    """F01, F14"""

    class Rows(dict[str, Any]):
        def setdefault(self, key: str, default: Any = None) -> Any:  # type: ignore[override]
            dict.setdefault(self, key, rival)
            return dict.setdefault(self, key, default)

    port, elsewhere = MemoryPort(MemoryBackend()), MemoryPort(MemoryBackend())
    asked(elsewhere, b"rival")
    rival = elsewhere._backend.scopes["s"]["k"]
    port._backend.scopes["s"] = Rows()
    reply: Any = drive(port.run([op]))[0]
    assert reply is False or reply.kind == "in_progress"
    assert port._backend.scopes["s"]["k"] is rival


def test_a_signal_whose_handler_runs_the_same_key_under_the_same_lock_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It claims and finishes a record that is free, on the thread that has just found it free (F01)."""
    port = MemoryPort(MemoryBackend())
    first = asked(port, b"first")
    assert port.settle(Settlement("s", "k", b"first", first.token, "free", 10**12)) is True
    standing, handled = port._standing, []

    def interrupted(*args: Any) -> Any:
        answer = standing(*args)
        if not handled:
            handled.append(True)
            token = asked(port, b"handler").token
            assert port.settle(Settlement("s", "k", b"handler", token, "done", 10**12, b"1")) is True
        return answer

    monkeypatch.setattr(port, "_standing", interrupted)
    assert asked(port, b"mine").kind == "done"


def test_a_doubt_that_is_completed_keeps_no_error() -> None:
    port = MemoryPort(MemoryBackend())
    token = asked(port, b"mine").token
    assert port.settle(Settlement("s", "k", b"mine", token, "in_doubt", 10**12, None, b"why")) is True
    assert port.settle(Settlement("s", "k", b"mine", token, "done", 10**12, b"1")) is True
    record = drive(port.get("s", "k"))
    assert record is not None
    assert (record.state, record.result, record.error) == ("done", b"1", None)


def test_an_interruption_leaves_the_lock_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it comes inside, or while the lock is another's (F16)."""
    port = MemoryPort(MemoryBackend())

    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(port, "_ticks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            port.complete("s", "k", b"mine", 1, 1_000, b"1")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with port._backend.lock:
            held.set()
            done.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    with monkeypatch.context() as patch:
        patch.setattr(port, "_acquire", interrupted)
        with pytest.raises(KeyboardInterrupt):
            port.complete("s", "k", b"mine", 1, 1_000, b"1")
    assert not port._backend.lock.acquire(blocking=False)
    done.set()
    holder.join()
    assert port._backend.lock.acquire(blocking=False)


# -- the short ways say what the long ones do


def settled(*ops: Settlement) -> Callable[[MemoryPort, ManualClock, int], None]:
    def happen(port: MemoryPort, clock: ManualClock, token: int) -> None:
        for op in ops:
            assert drive(port.run([structs.replace(op, token=token)])) == [True]

    return happen


def forgotten(port: MemoryPort, clock: ManualClock, token: int) -> None:
    assert drive(port.forget("s", "k", 10**12))


def swept(port: MemoryPort, clock: ManualClock, token: int) -> None:
    clock.advance("1h")
    assert drive(port.sweep(10)).deleted == 1


def taken_over(port: MemoryPort, clock: ManualClock, token: int) -> None:
    clock.advance("61s")
    answer: Any = drive(port.run([Claim("s", "k", b"rival", 60_000_000, 10**9)]))[0]
    assert answer.kind == "claimed"


MEANWHILE: dict[str, Callable[[MemoryPort, ManualClock, int], object]] = {
    "nothing": lambda port, clock, token: None,
    "its lease lapsed": lambda port, clock, token: clock.advance("61s"),
    "it expired": lambda port, clock, token: clock.advance("1h"),
    "it was swept": swept,
    "it was taken over": taken_over,
    "it was forgotten": forgotten,
    "it was completed": settled(Settlement("s", "k", b"mine", 0, "done", 10**12, b"before")),
    "it was released": settled(Settlement("s", "k", b"mine", 0, "free", 10**12)),
    "it failed": settled(Settlement("s", "k", b"mine", 0, "failed", 10**12, None, b"why")),
    "it is in doubt": settled(Settlement("s", "k", b"mine", 0, "in_doubt", 10**12, None, b"why")),
}


@pytest.mark.parametrize("retention", [10**9, 10**12])
@pytest.mark.parametrize("happens", MEANWHILE.values(), ids=MEANWHILE)
def test_a_completion_by_the_short_way_is_one_by_the_long_way(
    happens: Callable[[MemoryPort, ManualClock, int], object], retention: int
) -> None:
    """F04, F08"""
    found = []
    for short in (True, False):
        clock = ManualClock()
        port = MemoryPort(MemoryBackend(clock=clock))
        token = port.first("s", "k", b"mine", 60_000_000, 10**9, False, b"f" * 33)
        happens(port, clock, token)
        clock.advance_micros(7)
        if short:
            reply: Any = port.complete("s", "k", b"mine", token, retention, b"1")
        else:
            (reply,) = drive(port.run([Settlement("s", "k", b"mine", token, "done", retention, b"1")]))
        found.append((reply, drive(port.get("s", "k"))))
    assert found[0] == found[1]


@pytest.mark.parametrize("doubts", [False, True])
@pytest.mark.parametrize("prints", [b"", b"f" * 33, b"f" * 33 + b"g" * 33], ids=len)
def test_a_first_claim_by_the_short_way_is_one_by_the_long_way(prints: bytes, doubts: bool) -> None:
    found = []
    for short in (True, False):
        port = MemoryPort(MemoryBackend(clock=ManualClock()))
        asked(port, b"another", "so that there is a scope")
        if short:
            token = port.first("s", "k", b"mine", 60_000_000, 10**9, doubts, prints)
        else:
            answer: Any = drive(port.run([Claim("s", "k", b"mine", 60_000_000, 10**9, 0, doubts, prints)]))[0]
            token = answer.token
        found.append((token, drive(port.get("s", "k"))))
    assert found[0] == found[1]
    assert found[0][0] > 0


def test_the_short_way_grants_nothing_that_has_a_record() -> None:
    """F02"""
    port = MemoryPort(MemoryBackend())
    assert port.first("s", "k", b"mine", 60_000_000, 10**9, False, b"") > 0
    assert port.first("s", "k", b"rival", 60_000_000, 10**9, False, b"") == 0
    record = drive(port.get("s", "k"))
    assert record is not None
    assert record.owner == b"mine"
