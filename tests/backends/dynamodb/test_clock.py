"""The service's time, estimated from the dates of its replies, and the leases that depend on it."""

import random
import time
from datetime import UTC, datetime

import pytest

from effectonce.backends.dynamodb.clock import ServerClock
from effectonce.backends.dynamodb.store import DynamoDBBackend
from effectonce.contracts import Port
from effectonce.core.run_sync import run_sync
from effectonce.errors import StoreUnavailable
from effectonce.record import Look, Remember, Renewal, Resolution, SweepResult
from effectonce.values.urls import Address

from .table import HOUR, SECOND, FixedClock, TimelessBackend, claim_answer, complete, make_claim, run_one

pytest.importorskip("botocore.session", reason="pip install 'effectonce[dynamodb]'")

pytestmark = pytest.mark.quick_on("async")


class Service:
    """A clock to estimate, seen through a network, without either being there."""

    def __init__(self, ahead: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.local = 0
        self.ahead = ahead
        self.clock = ServerClock(lambda: self.local)

    def call(self, wait: int, there: int, back: int) -> None:
        self.local += wait
        sent = self.local
        self.local += there
        dated = datetime.fromtimestamp((self.local + self.ahead) // SECOND, UTC)
        self.local += back
        self.clock.observe(sent, dated.strftime("%a, %d %b %Y %H:%M:%S GMT"))

    def error(self) -> int:
        return abs(self.clock.now() - (self.local + self.ahead))


@pytest.mark.parametrize("seed", range(20))
def test_the_estimate_is_never_wrong_by_more_than_it_says(seed: int) -> None:
    """F12."""
    service = Service(ahead=1_790_000_000_123_456 + seed * 77_777, seed=seed)
    dice = service.random
    for n in range(300):
        service.call(dice.randrange(3 * SECOND), dice.randrange(200_000), dice.randrange(20_000))
        assert service.error() <= service.clock.uncertainty()
        if n == 0:
            assert service.clock.uncertainty() >= SECOND // 2
    assert service.clock.uncertainty() < 100_000


def test_an_estimate_grows_old() -> None:
    service = Service(ahead=1_790_000_000_000_000, seed=1)
    for _ in range(200):
        service.call(37_003, 1_000, 1_000)
    sharp = service.clock.uncertainty()
    service.local += 3600 * SECOND
    assert service.clock.uncertainty() == pytest.approx(
        sharp + 3600 * SECOND * ServerClock.MAX_DRIFT_PPM / 1e6, rel=0.01
    )


def test_a_reply_that_contradicts_the_estimate_starts_it_anew() -> None:
    service = Service(ahead=1_790_000_000_000_000, seed=1)
    for _ in range(50):
        service.call(137_003, 1_000, 1_000)
    service.ahead += HOUR  # we were stopped for an hour
    service.call(1_000, 1_000, 1_000)
    assert service.error() <= service.clock.uncertainty() < SECOND


def test_a_reply_without_a_sensible_date_says_nothing() -> None:
    clock = ServerClock(lambda: 5)
    clock.observe(1, "yesterday")
    assert not clock.is_known
    with pytest.raises(StoreUnavailable):
        clock.now()


def real_time() -> int:
    return time.monotonic_ns() // 1000


def test_workers_whose_clocks_are_hours_apart_exclude_each_other(table: str, key: str) -> None:
    """F12: only the store's time counts."""
    skewed = [
        DynamoDBBackend(Address(table), clock=ServerClock(lambda by=by: real_time() + by * HOUR)).sync_port()  # type: ignore[misc]
        for by in (-1, 1)
    ]
    times = [run_sync(port.now()) for port in skewed]
    assert abs(times[0] - times[1]) < 2 * SECOND
    assert abs(times[0] - time.time_ns() // 1000) < 2 * SECOND  # DynamoDB local has this machine's time
    early, late = skewed
    first = make_claim(key, lease=30 * SECOND)
    token = claim_answer(early, first).token
    rival = claim_answer(late, make_claim(key, lease=30 * SECOND))
    assert rival.kind == "in_progress"
    assert 28 < rival.retry_after < 32
    assert run_one(early, complete(first, token)) is True
    for port in skewed:
        run_sync(port.close())


def test_a_claim_reckoned_from_a_time_that_jumped_is_given_back(table: str, key: str) -> None:
    """F11: a stopped machine's monotonic clock may stand still meanwhile."""
    stopped = 0
    port = DynamoDBBackend(Address(table), clock=ServerClock(lambda: real_time() - stopped)).sync_port()
    run_sync(port.now())
    stopped = HOUR
    reply = run_one(port, make_claim(key, doubt_on_lapse=True))
    assert isinstance(reply, StoreUnavailable)
    assert "drifted apart" in str(reply)
    record = run_sync(port.get("scope", key))
    assert record is not None
    assert (record.state, record.attempts) == ("free", 0)
    again = claim_answer(port, make_claim(key))
    assert (again.kind, again.attempts, again.lapsed) == ("claimed", 1, False)
    run_sync(port.close())


def test_a_renewal_reckoned_from_a_time_that_jumped_is_made_again(table: str, key: str) -> None:
    stopped = 0
    port = DynamoDBBackend(Address(table), clock=ServerClock(lambda: real_time() - stopped)).sync_port()
    claim = make_claim(key)
    token = claim_answer(port, claim).token
    stopped = HOUR
    assert run_one(port, Renewal("scope", key, claim.owner, token, 60 * SECOND, HOUR)) is True
    record = run_sync(port.get("scope", key))
    assert record is not None
    assert record.lease_until is not None
    assert abs(record.lease_until - run_sync(port.now()) - 60 * SECOND) < 3 * SECOND
    run_sync(port.close())


def test_a_lease_too_short_for_what_is_known_of_the_time_is_not_granted(port: Port, key: str) -> None:
    """Skew over a quarter of the lease is refused; what is finished is told all the same."""
    reply = run_one(port, make_claim(key, lease=20_000))
    assert isinstance(reply, StoreUnavailable)
    assert "lease" in str(reply)
    assert run_sync(port.get("scope", key)) is None
    claim = make_claim(key)
    assert run_one(port, complete(claim, claim_answer(port, claim).token, b"r")) is True
    assert claim_answer(port, make_claim(key, lease=20_000)).result == b"r"


def test_a_short_lease_is_granted_once_the_turn_of_the_second_was_seen(table: str, key: str) -> None:
    backend = DynamoDBBackend(Address(table))
    port = backend.sync_port()
    run_sync(port.now())
    assert backend.server_clock.uncertainty() > 250_000
    assert claim_answer(port, make_claim(key, lease=SECOND)).kind == "claimed"
    assert backend.server_clock.uncertainty() <= 250_000
    run_sync(port.close())


UNSURE = 500_000


@pytest.mark.parametrize("off", [-UNSURE, 0, UNSURE])
def test_a_process_unsure_of_the_time_ends_no_lease_early(timeless: TimelessBackend, off: int) -> None:
    """F12: half a second, as after the first reply. It may be late instead."""
    owner = timeless.sync_port()
    clock = FixedClock(timeless.clock.now)
    clock.offset, clock.wrong = off, UNSURE
    unsure = DynamoDBBackend(Address(str(timeless.target)), clock=clock).sync_port()
    claims = [make_claim("rerun", lease=2 * SECOND), make_claim("doubt", lease=2 * SECOND, doubt_on_lapse=True)]
    tokens = [claim_answer(owner, claim).token for claim in claims]
    word = Resolution(state="done", retention_us=HOUR)

    timeless.clock.advance_micros(2 * SECOND - 1)
    assert run_sync(unsure.sweep(10)) == SweepResult(0, 0, False)
    assert run_sync(unsure.resolve("scope", "doubt", word)) is False
    for claim, token in zip(claims, tokens, strict=True):
        for op in (make_claim(claim.key), Look("scope", claim.key)):
            reply = claim_answer(unsure, op)
            assert (reply.kind, reply.retry_after > 0) == ("in_progress", True)
        assert run_one(unsure, Remember("scope", claim.key, HOUR)) is False
        assert run_one(owner, Renewal("scope", claim.key, claim.owner, token, 2 * SECOND, HOUR)) is True

    timeless.clock.advance_micros(2 * SECOND + 2 * UNSURE)
    assert run_sync(unsure.sweep(1)) == SweepResult(0, 1, False)
    assert claim_answer(unsure, make_claim("doubt")).kind == "in_doubt"
    taken = claim_answer(unsure, make_claim("rerun"))
    assert (taken.kind, taken.lapsed) == ("claimed", True)
