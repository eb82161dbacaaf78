"""F77: an exception that a signal handler raises inside our own code, as a time limit does, reaches the caller."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import ConnectionLost
from effectonce.core.codec import Codec, decode_error, encode_error
from effectonce.core.error_text import describe_error, error_text
from effectonce.envelopes.bodies import read_json, write_json
from effectonce.record import Batchable, Claim, Settlement
from effectonce.testing import ManualClock
from tests.harness.faulty_store import FaultyBackend, GroupedBackend


class Timer:
    """A time limit whose handler raises, and counts how often it did."""

    def __init__(self) -> None:
        self.fired = 0
        self.left = 1

    def on_signal(self, number: int, frame: Any) -> None:
        self.fired += 1
        raise TimeoutError("the time limit of the task is over")

    def strike(self) -> None:
        """Let the limit end now, the first time it is called."""
        if self.left:
            self.left -= 1
            signal.raise_signal(signal.SIGALRM)


@pytest.fixture
def timer() -> Iterator[Timer]:
    timer = Timer()
    before = signal.signal(signal.SIGALRM, timer.on_signal)
    yield timer
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=[False, True], ids=["raw", "translated"])
def translated(request: pytest.FixtureRequest) -> bool:
    """Whether the backend takes what the handler raises for a failure of its connection, as drivers do."""
    translated: bool = request.param
    return translated


@pytest.fixture
def backend(translated: bool, clock: ManualClock) -> FaultyBackend:
    """Only a server has a connection to lose."""
    return GroupedBackend(clock) if translated else FaultyBackend(clock)


def strikes_at(timer: Timer, kind: type, translated: bool) -> Callable[[Batchable], None]:
    """A fault of the store: the limit ends in an operation of ``kind``."""

    def fault(op: Batchable) -> None:
        if isinstance(op, kind):
            try:
                timer.strike()
            except TimeoutError as error:
                if not translated:
                    raise
                raise ConnectionLost("the connection broke") from error

    return fault


def test_while_a_result_is_encoded(store: eo.Store, timer: Timer) -> None:
    """The effect has happened: it is recorded, with its result, and then the limit is raised."""

    class Money:
        def __init__(self, amount: int) -> None:
            self.amount = amount

        def __eq__(self, other: object) -> bool:
            timer.strike()
            return isinstance(other, Money) and other.amount == self.amount

        def model_dump(self, mode: str) -> int:
            return self.amount

        @classmethod
        def model_validate(cls, value: int) -> Money:
            return cls(value)

    runs: list[int] = []

    @eo.once(store, scope="charge", key="k", returns=Money)
    def charge(k: str) -> Money:
        runs.append(1)
        return Money(4200)

    with pytest.raises(TimeoutError, match="time limit"):
        charge("p1")
    replay = charge.call("p1")
    assert (replay.replayed, replay.value.amount, runs, timer.fired) == (True, 4200, [1], 1)


@pytest.mark.parametrize("discards", [False, True])
def test_while_a_success_is_recorded(backend: FaultyBackend, timer: Timer, translated: bool, discards: bool) -> None:
    store = eo.Store(backend)
    runs: list[int] = []

    @eo.once(store, scope="charge", key="k", returns=None if discards else str)
    def charge(k: str) -> str:
        runs.append(1)
        return "receipt"

    backend.before = strikes_at(timer, Settlement, translated)  # type: ignore[assignment]
    with pytest.raises(TimeoutError, match="time limit"):
        charge("p1")
    assert charge("p1") == (None if discards else "receipt")
    assert (runs, timer.fired) == ([1], 1)


@pytest.mark.parametrize("on_store_error", ["run", "raise"])
def test_while_a_success_is_recorded_in_a_store_that_then_fails(
    backend: FaultyBackend, timer: Timer, translated: bool, on_store_error: Any
) -> None:
    """It is not recorded, and the caller is told of the time limit all the same."""
    store = eo.Store(backend)
    strike = strikes_at(timer, Settlement, translated)

    def fault(op: Batchable) -> None:
        was_over = timer.fired
        strike(op)
        if was_over and isinstance(op, Settlement):
            raise eo.StoreUnavailable("the store is down")

    @eo.once(store, scope="charge", key="k", on_store_error=on_store_error)
    def charge(k: str) -> str:
        return "receipt"

    backend.before = fault  # type: ignore[assignment]
    with pytest.raises(TimeoutError, match="time limit"):
        charge("p1")


def test_while_a_failed_attempt_is_released(backend: FaultyBackend, timer: Timer, translated: bool) -> None:
    store = eo.Store(backend)
    backend.before = strikes_at(timer, Settlement, translated)  # type: ignore[assignment]

    @eo.once(store, scope="charge", key="k")
    def charge(k: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(TimeoutError, match="time limit"):
        charge("p1")
    record = store.get("charge", "p1")
    assert record is not None
    assert record.state == "free"


def test_while_a_claim_is_made(backend: FaultyBackend, timer: Timer, translated: bool) -> None:
    store = eo.Store(backend)
    runs: list[int] = []
    backend.before = strikes_at(timer, Claim, translated)  # type: ignore[assignment]
    charge = eo.once(store, scope="charge", key="k")(lambda k: runs.append(1))
    with pytest.raises(TimeoutError, match="time limit"):
        charge("p1")
    assert runs == []
    charge("p1")
    assert runs == [1]


def test_in_a_hook(store: eo.Store, timer: Timer) -> None:
    store.add_hook(lambda event: timer.strike())
    with pytest.raises(TimeoutError, match="time limit"):
        eo.once(store, scope="charge", key="k")(lambda k: None)("p1")


def pure_code(timer: Timer) -> dict[str, Callable[[], object]]:
    class Struck(Exception):
        def __str__(self) -> str:
            timer.strike()
            return "text"

    class Model:
        def model_dump(self, mode: str) -> Any:
            timer.strike()

        @classmethod
        def model_validate(cls, value: Any) -> Any:
            timer.strike()

    return {
        "decode a result": lambda: Codec(Model, 100).decode(b"1{}"),
        "encode a result": lambda: Codec(Model, 100).encode(Model()),
        "encode an error": lambda: encode_error(Struck()),
        "describe an error": lambda: describe_error(Struck()),
        "the text of an error": lambda: error_text(Struck()),
        "write a message": lambda: write_json({"data": Model()}, eo.Message(type="t", data=None)),
        "read a message": lambda: read_json(b"{}", Model, "the data"),
    }


@pytest.mark.parametrize("name", list(pure_code(Timer())))
def test_in_code_that_expects_other_failures(timer: Timer, name: str) -> None:
    with pytest.raises(TimeoutError, match="time limit"):
        pure_code(timer)[name]()


def test_a_failure_that_only_looks_like_a_time_limit_is_none(timer: Timer) -> None:
    """A handler of signals is there, and has not run."""

    class Model:
        def model_dump(self, mode: str) -> Any:
            raise TimeoutError("of its own")

    with pytest.raises(eo.ConfigurationError, match="no JSON form"):
        write_json(Model(), eo.Message(type="t", data=None))
    with pytest.raises(eo.CorruptRecord):
        decode_error(b"1nothing")
