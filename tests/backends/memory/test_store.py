"""The memory store keeps the contract, and the contract's suite has teeth: broken stores fail it."""

import subprocess
import sys
import threading
from typing import Any

import pytest

from effectonce.backends.memory import store as memory
from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.core.run_sync import run_sync
from effectonce.errors import InvalidOption
from effectonce.record import Answer, Claim, Query, Remember, Settlement
from effectonce.testing.clock import START_US, ManualClock
from effectonce.testing.suites import store_cases, store_suite
from effectonce.values.urls import Address
from tests.backends.exact_times import ExactTimes, TimedPort
from tests.backends.store_mutants import MUTANTS, Defect, Mutant, MutantBackend, NotifyingPort

TestContract = store_suite(lambda: MemoryStoreBackend(clock=ManualClock()))
TestContractOnTheSystemClock = pytest.mark.quick_once(store_suite(MemoryStoreBackend))
TestContractWithNotifications = store_suite()  # on the fixture below


class TestExactTimes(ExactTimes):
    @pytest.fixture
    def timed(self) -> TimedPort:
        clock = ManualClock()
        return TimedPort(MemoryPort(MemoryStoreBackend(clock=clock)), clock)


CASES = {str(case): case for case in store_cases()}


@pytest.fixture
def backend() -> MutantBackend:
    return MutantBackend(NotifyingPort, ManualClock())


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
        store_suite(MemoryStoreBackend, skip=("no_such_case",))


def test_every_case_of_the_suite_has_its_sentence_as_name() -> None:
    assert len(CASES) > 70
    assert all(name.isidentifier() and name.count("_") >= 2 for name in CASES)


def test_the_suite_imports_no_pytest() -> None:
    """It ships with the product, where pytest may not be installed."""
    code = "import sys, effectonce.testing.suites; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_manual_clock_moves_only_by_hand() -> None:
    clock = ManualClock()
    assert (clock.now(), clock.monotonic()) == (START_US, 0.0)
    assert clock.advance("1.5s") == START_US + 1_500_000
    assert clock.advance_micros(1) == clock.now() == START_US + 1_500_001
    assert clock.monotonic() == 1.500001
    with pytest.raises(InvalidOption):
        clock.advance("yesterday")
    with pytest.raises(ValueError, match="back"):
        clock.advance_micros(-1)


# -- an address, a fork, a cursor


def test_it_has_no_host_and_no_path() -> None:
    for url in ("memory://", "memory:///"):
        assert repr(MemoryStoreBackend(Address(url))) == "memory://"
    for url in ("memory://host", "memory:///path", "memory://?option=1"):
        with pytest.raises(InvalidOption):
            MemoryStoreBackend(Address(url))


def test_it_says_what_it_is_not() -> None:
    capabilities = MemoryStoreBackend.capabilities
    assert (capabilities.name, capabilities.connections) == ("memory", "none")
    assert not capabilities.durable
    assert not capabilities.shared
    assert capabilities.notes
    assert capabilities.ordered


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    backend = MemoryStoreBackend()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with backend.lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    backend.after_fork()
    assert backend.lock.acquire(timeout=1)
    done.set()
    thread.join()


def test_a_list_leaves_out_what_was_not_asked_for() -> None:
    port = MemoryPort(MemoryStoreBackend(clock=ManualClock()))
    for scope, key in (("a", "1"), ("a", "2"), ("b", "1")):
        ask(port, Claim(scope, key, b"x" * 16, 60_000_000, 1_000))
    pages, cursor = [], None
    while True:
        page = run_sync(port.list(Query(limit=2, cursor=cursor)))
        pages.append([(record.scope, record.key) for record in page.records])
        cursor = page.cursor
        if cursor is None:
            break
    assert pages == [[("a", "1"), ("a", "2")], [("b", "1")]]
    assert [record.key for record in run_sync(port.list(Query(scope="b"))).records] == ["1"]
    for bad in ("x", ":a", "1x:a"):
        with pytest.raises(InvalidOption, match="was not made by this list"):
            run_sync(port.list(Query(cursor=bad)))


def test_it_hears_of_no_changes() -> None:
    assert run_sync(MemoryPort(MemoryStoreBackend()).changes(0.0)) == ()


# -- one lock, one row at a time


def ask(port: MemoryPort, op: Any) -> Any:
    (reply,) = run_sync(port.run([op]))
    return reply


def claim(port: MemoryPort, owner: bytes, key: str = "k") -> Answer:
    answer: Answer = ask(port, Claim("s", key, owner, 60_000_000, 1_000))
    return answer


def test_a_claim_survives_that_its_scope_is_swept_away() -> None:
    """The sweeper deletes the last record of a scope, and with it the scope's dictionary (F26)."""
    clock = ManualClock()
    port, sweeper = (MemoryPort(backend) for backend in [MemoryStoreBackend(clock=clock)] * 2)
    old = claim(port, b"before", "old")
    assert ask(port, Settlement("s", "old", b"before", old.token, "done", 1)) is True
    clock.advance_micros(1)
    assert run_sync(sweeper.sweep(10)).deleted == 1
    assert port._backend.scopes == {}
    answer = claim(port, b"mine")
    record = run_sync(port.get("s", "k"))
    assert record is not None
    assert (answer.kind, record.owner, record.token) == ("claimed", b"mine", answer.token)


def test_a_claim_waits_for_the_lock() -> None:
    """F14"""
    port = MemoryPort(MemoryStoreBackend())
    with port._backend.lock:
        thread = threading.Thread(target=claim, args=(port, b"mine"))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert port._backend.scopes == {}
    thread.join()
    assert claim(port, b"mine").kind == "claimed"


@pytest.mark.parametrize("state", ["absent", "free"])
@pytest.mark.parametrize(
    "op", [Remember("s", "k", 1_000), Claim("s", "k", b"mine", 60_000_000, 1_000)], ids=lambda op: type(op).__name__
)
def test_a_signal_whose_handler_runs_the_same_key_under_the_same_lock_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch, op: Any, state: str
) -> None:
    """It claims and finishes a record on the thread that has just found it free, or absent (F01)."""
    port = MemoryPort(MemoryStoreBackend())
    if state == "free":
        first = claim(port, b"first")
        assert ask(port, Settlement("s", "k", b"first", first.token, "free", 10**12)) is True
    handled = []

    def interrupted(fingerprints: bytes) -> bytes:
        if not handled:
            handled.append(True)
            token = claim(port, b"handler").token
            assert ask(port, Settlement("s", "k", b"handler", token, "done", 10**12, b"1")) is True
        return fingerprints[:33]

    monkeypatch.setattr(memory, "first_fingerprint", interrupted)
    reply = ask(port, op)
    assert reply is True if isinstance(op, Remember) else reply.kind == "done"
    record = run_sync(port.get("s", "k"))
    assert record is not None
    assert (record.owner, record.result) == (b"handler", b"1")


def test_a_doubt_that_is_completed_keeps_no_error() -> None:
    port = MemoryPort(MemoryStoreBackend())
    token = claim(port, b"mine").token
    assert ask(port, Settlement("s", "k", b"mine", token, "in_doubt", 10**12, None, b"why")) is True
    assert ask(port, Settlement("s", "k", b"mine", token, "done", 10**12, b"1")) is True
    record = run_sync(port.get("s", "k"))
    assert record is not None
    assert (record.state, record.result, record.error) == ("done", b"1", None)


def test_an_interruption_leaves_the_lock_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """F16"""
    port = MemoryPort(MemoryStoreBackend())

    def interrupted() -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(port._backend.clock, "now", interrupted)
        with pytest.raises(KeyboardInterrupt):
            claim(port, b"mine")
    others: list[Answer] = []
    thread = threading.Thread(target=lambda: others.append(claim(port, b"other")))
    thread.start()
    thread.join(10)
    assert [answer.kind for answer in others] == ["claimed"]
