"""The DynamoDB store: the contract in both colours, and what is particular to it."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from effectonce.backends.dynamodb.client import parse_target, translate
from effectonce.backends.dynamodb.clock import ServerClock
from effectonce.backends.dynamodb.store import DynamoDBBackend
from effectonce.contracts import ConnectionLost, Port
from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    InvalidOption,
    MissingDriver,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    UnsafeStore,
)
from effectonce.keys import digest
from effectonce.record import (
    EXHAUSTED,
    Answer,
    Batchable,
    Claim,
    Look,
    Query,
    Remember,
    Renewal,
    Reply,
    Resolution,
    Settlement,
    SweepResult,
)
from effectonce.testing.clock import ManualClock
from effectonce.testing.suites import StoreCase, store_cases, store_suite
from effectonce.values.urls import Address
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy

pytestmark = pytest.mark.quick_on("async")

SECOND = 1_000_000
HOUR = 3600 * SECOND
FAR = 253_402_300_799

sdk = pytest.importorskip("botocore.session", reason="pip install 'effectonce[dynamodb]'")


def at(url: str, table: str) -> str:
    return f"dynamodb://{table}?{urlsplit(url).query}"


class Told(ServerClock):
    """The service's time as a test says it is, known exactly unless it says otherwise."""

    known = True
    offset = 0
    wrong = 0

    def observe(self, sent: int, date: str) -> None:
        pass

    def uncertainty(self) -> int:
        return self.wrong


class TimelessBackend(DynamoDBBackend):
    """The real thing on a clock that is advanced, so that the contract's leases end without waiting.

    It starts in 2100, since DynamoDB deletes what has expired on a clock of its own.
    """

    migrated = False

    def __init__(self, address: Address) -> None:
        self.clock = ManualClock(4_102_444_800_000_000)
        super().__init__(address, clock=Told(self.clock.now))

    def sync_port(self) -> Port:
        return self._prepared(super().sync_port())

    def async_port(self) -> Port:
        return self._prepared(super().async_port())

    def _prepared(self, port: Port) -> Port:
        """``port``, which does not migrate as the first thing it does where another has: every case begins with
        that, in three requests."""
        migrate = port.migrate

        async def unless_done() -> None:
            if not self.migrated or port._is_prepared:  # type: ignore[attr-defined]
                await migrate()
                self.migrated = True

        port.migrate = unless_done  # type: ignore[method-assign]
        return port


@pytest.fixture(scope="module")
def backend(dynamodb_url: str) -> DynamoDBBackend:
    return TimelessBackend(Address(at(dynamodb_url, f"suite-{uuid.uuid4().hex}") + "&timeout=60s&connect_timeout=60s"))


TestContract = pytest.mark.quick_once(store_suite())


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        case
        for case in store_cases()
        if str(case)
        in {
            "a_stale_settlement_leaves_the_successors_alone",
            "resolve_takes_a_claim_that_lapsed_into_doubt",
            "claims_settlements_renewals_and_sweeps_run_together",
        }
    ],
    ids=str,
)
def test_in_estimated_time(case: StoreCase, dynamodb_url: str) -> None:
    """Some of the contract again, on the time that users have. Both colours wait at once, on a table each."""

    def run(colour: Any) -> None:
        case.run(DynamoDBBackend(Address(at(dynamodb_url, f"suite-{uuid.uuid4().hex}"))), colour)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, case.port_kinds))


# -- given a table, and a client that knows nothing of us


@pytest.fixture(scope="module")
def table(dynamodb_url: str) -> str:
    """The URL of a migrated table for everything below."""
    url = at(dynamodb_url, f"own-{uuid.uuid4().hex}")
    run_sync(DynamoDBBackend(Address(url)).sync_port().migrate())
    return url


@pytest.fixture
def port(table: str) -> Iterator[Port]:
    port = DynamoDBBackend(Address(table)).sync_port()
    yield port
    run_sync(port.close())


@pytest.fixture
def key(unique_name: str) -> str:
    return unique_name


def raw_client(url: str) -> Any:
    endpoint = url.partition("endpoint=")[2].partition("&")[0]
    return sdk.Session().create_client("dynamodb", region_name="us-east-1", endpoint_url=endpoint)


def a_claim(key: str, *, lease: int = 60 * SECOND, **options: Any) -> Claim:
    return Claim("scope", key, os.urandom(16), lease, HOUR, **options)


def done(claim: Claim, token: int, result: bytes | None = None) -> Settlement:
    return Settlement(claim.scope, claim.key, claim.owner, token, "done", HOUR, result)


def ask(port: Port, op: Batchable) -> Reply:
    (reply,) = run_sync(port.run([op]))
    return reply


def answer(port: Port, op: Claim | Look) -> Answer:
    reply = ask(port, op)
    assert isinstance(reply, Answer), reply
    return reply


def stored(url: str, key: str) -> dict[str, Any]:
    found: dict[str, Any] = raw_client(url).get_item(
        TableName=urlsplit(url).netloc, Key={"id": {"B": digest("scope", key)}}, ConsistentRead=True
    )["Item"]
    return found


def poke(url: str, key: str, **numbers: int) -> None:
    """Change attributes behind the store's back."""
    raw_client(url).update_item(
        TableName=urlsplit(url).netloc,
        Key={"id": {"B": digest("scope", key)}},
        UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in numbers),
        ExpressionAttributeNames={f"#{name}": name for name in numbers},
        ExpressionAttributeValues={f":{name}": {"N": str(value)} for name, value in numbers.items()},
    )


async def hold_still(backend: DynamoDBBackend, port: Port) -> None:
    """Learn no more about the service's time. In its first second the estimate may move back by more than a few
    calls take: records then look older than they are, and a token ahead of it takes a second write."""
    await port.now()
    backend.server_clock.observe = lambda sent, date: None  # type: ignore[method-assign]


@pytest.fixture
def timeless(dynamodb_url: str, unique_name: str) -> TimelessBackend:
    """A table of the test's own, on a clock that is advanced."""
    backend = TimelessBackend(Address(at(dynamodb_url, unique_name)))
    run_sync(backend.sync_port().migrate())
    return backend


# -- one request each


class Counted:
    """The requests that a client of the caller's sends."""

    def __init__(self, client: Any) -> None:
        self.names: list[str] = []
        client.meta.events.register("before-send.dynamodb", self._sent)

    def _sent(self, request: Any, **_: Any) -> None:
        target = request.headers["X-Amz-Target"]
        name = target if isinstance(target, str) else target.decode()
        self.names.append(name.partition(".")[2])

    def since(self) -> list[str]:
        names, self.names[:] = list(self.names), []
        return names


async def _requests_of_a_guarded_call(
    backend: DynamoDBBackend, port: Port, sent: Counted, key: str
) -> dict[str, list[str]]:
    await hold_still(backend, port)
    sent.since()
    found: dict[str, list[str]] = {}

    async def step(name: str, op: Batchable) -> Any:
        (reply,) = await port.run([op])
        found[name] = sent.since()
        return reply

    first = a_claim(key)
    token = (await step("claim", first)).token
    assert (await step("rival", a_claim(key))).kind == "in_progress"
    assert await step("renewal", Renewal("scope", key, first.owner, token, SECOND * 60, HOUR)) is True
    assert await step("release", Settlement("scope", key, first.owner, token, "free", HOUR)) is True
    second = a_claim(key)
    again = await step("claim of a free record", second)
    assert (again.kind, again.attempts) == ("claimed", 2)
    assert await step("completion", done(second, again.token, b"r")) is True
    assert (await step("duplicate", a_claim(key))).result == b"r"
    assert (await step("look", Look("scope", key))).kind == "done"
    assert await step("remember", Remember("scope", key + "-s", HOUR)) is True
    return found


ONE_EACH = {
    "claim": ["UpdateItem"],
    "rival": ["UpdateItem"],
    "renewal": ["UpdateItem"],
    "release": ["UpdateItem"],
    "claim of a free record": ["UpdateItem"],
    "completion": ["UpdateItem"],
    "duplicate": ["UpdateItem"],
    "look": ["GetItem"],
    "remember": ["PutItem"],
}


def test_every_operation_is_one_request_on_a_boto3_client(table: str, key: str) -> None:
    import boto3

    client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=raw_client(table).meta.endpoint_url)
    backend = DynamoDBBackend.from_client(client, urlsplit(table).netloc)
    port = backend.sync_port()
    assert run_sync(_requests_of_a_guarded_call(backend, port, Counted(client), key)) == ONE_EACH
    run_sync(port.close())
    client.list_tables()  # its owner closes it, not we


@asynccontextmanager
async def aiobotocore_client(url: str) -> AsyncIterator[Any]:
    aio = pytest.importorskip("aiobotocore.session")
    endpoint = raw_client(url).meta.endpoint_url
    async with aio.AioSession().create_client("dynamodb", region_name="us-east-1", endpoint_url=endpoint) as client:
        yield client


async def test_every_operation_is_one_request_on_an_aiobotocore_client(table: str, key: str) -> None:
    async with aiobotocore_client(table) as client:
        backend = DynamoDBBackend.from_client(client, urlsplit(table).netloc)
        port = backend.async_port()
        assert await _requests_of_a_guarded_call(backend, port, Counted(client), key) == ONE_EACH
        await port.close()
        await client.list_tables()
        heartbeat = backend.sync_port()  # the other colour opens its own client at the same place
        assert answer(heartbeat, Look("scope", key)).kind == "done"
        await heartbeat.close()


# -- what one expression cannot say, and what DynamoDB does late


def test_an_expired_item_that_is_still_there_is_absent(table: str, port: Port, key: str) -> None:
    """F39: DynamoDB deletes expired items hours late."""
    first = a_claim(key)
    token = answer(port, first).token
    assert ask(port, done(first, token, b"old")) is True
    poke(table, key, expires_at=run_sync(port.now()) - 2 * SECOND, attempts=9, generation=4)
    assert stored(table, key)["result"]["B"] == b"old"
    assert run_sync(port.get("scope", key)) is None
    assert answer(port, Look("scope", key)).kind == "absent"
    taken = answer(port, a_claim(key))
    assert (taken.kind, taken.attempts, taken.generation, taken.lapsed) == ("claimed", 1, 0, False)
    assert taken.token > token
    assert "result" not in stored(table, key)


def test_a_token_grows_even_where_the_old_one_is_ahead_of_the_clock(table: str, port: Port, key: str) -> None:
    """F69."""
    first = a_claim(key)
    token = answer(port, first).token
    assert ask(port, Settlement("scope", key, first.owner, token, "free", HOUR)) is True
    ahead = run_sync(port.now()) + HOUR
    poke(table, key, token=ahead)
    taken = answer(port, a_claim(key))
    assert (taken.kind, taken.token, taken.attempts) == ("claimed", ahead + 1, 2)


def test_dynamodb_will_delete_what_expires_and_nothing_else(table: str, port: Port, key: str) -> None:
    """Its time to live reads ``expires``, in seconds: absent or far for what may lapse into doubt (F26)."""
    plain, doubtful = a_claim(key), a_claim(f"{key}-d", doubt_on_lapse=True)
    token, doubtful_token = answer(port, plain).token, answer(port, doubtful).token

    def ends(key: str) -> int | None:
        item = stored(table, key)
        return int(item["expires"]["N"]) if "expires" in item else None

    due = token / 1e6 + 60 + 3600
    assert due <= (ends(key) or 0) < due + 2
    assert ends(f"{key}-d") == FAR
    for claim, its in ((plain, token), (doubtful, doubtful_token)):
        assert ask(port, Renewal(claim.scope, claim.key, claim.owner, its, 600 * SECOND, HOUR)) is True
    spent = time.time() - token / 1e6
    assert due + 540 <= (ends(key) or 0) < due + 540 + spent + 2
    assert ends(f"{key}-d") == FAR
    record = run_sync(port.get("scope", f"{key}-d"))
    assert record is not None
    assert record.expires_at is None
    settlement = replace(done(doubtful, doubtful_token), state="in_doubt")
    assert ask(port, settlement) is True
    assert ends(f"{key}-d") is None
    assert ask(port, done(doubtful, doubtful_token)) is True
    assert token / 1e6 + 3600 - 1 <= (ends(f"{key}-d") or 0) <= time.time() + 3600 + 2


def test_a_result_over_the_size_of_an_item_is_dropped_and_the_record_is_done(port: Port, key: str) -> None:
    """F18: never rerun for want of room."""
    claim = a_claim(key)
    token = answer(port, claim).token
    assert ask(port, done(claim, token, b"x" * 410_000)) is True
    duplicate = answer(port, a_claim(key))
    assert (duplicate.kind, duplicate.result) == ("done", None)
    assert ask(port, Remember("scope", f"{key}-s", HOUR, b"", b"x" * 410_000)) is True
    assert answer(port, Look("scope", f"{key}-s")).kind == "done"


def test_a_poisoned_item_is_an_error_of_its_own_operation(table: str, port: Port, key: str) -> None:
    """F60."""
    answer(port, a_claim(key))
    raw_client(table).put_item(
        TableName=urlsplit(table).netloc, Item={"id": {"B": digest("scope", key)}, "state": {"S": "pickled"}}
    )
    replies = run_sync(port.run(sorted([a_claim(key), a_claim(f"{key}-b")], key=lambda op: op.key)))
    assert isinstance(replies[0], CorruptRecord)
    assert isinstance(replies[1], Answer)
    raw_client(table).delete_item(TableName=urlsplit(table).netloc, Key={"id": {"B": digest("scope", key)}})


def test_exhausted_by_a_race_of_many_is_told_to_all(port: Port, table: str, key: str) -> None:
    """Writes on the version that was read: whoever loses decides again from what won."""
    first = a_claim(key)
    token = answer(port, first).token
    assert ask(port, Settlement("scope", key, first.owner, token, "free", HOUR)) is True

    async def race() -> list[Any]:
        backend = DynamoDBBackend(Address(table))
        ports = [backend.async_port() for _ in range(8)]
        try:
            replies = await asyncio.gather(*(port.run([a_claim(key, max_attempts=1)]) for port in ports))
            return [reply for (reply,) in replies]
        finally:
            await asyncio.gather(*(port.close() for port in ports))

    assert {(reply.kind, reply.error) for reply in asyncio.run(race())} == {("exhausted", EXHAUSTED)}


# -- listing


def test_states_are_listed_newest_first_across_the_shards(table: str, unique_name: str) -> None:
    backend = DynamoDBBackend(Address(table))
    port = backend.sync_port()
    run_sync(hold_still(backend, port))
    keys = [f"{unique_name}-{n}" for n in range(25)]
    for key in keys:
        claim = Claim(unique_name, key, os.urandom(16), 60 * SECOND, HOUR)
        token = answer(port, claim).token
        assert ask(port, Settlement(unique_name, key, claim.owner, token, "in_doubt", HOUR)) is True
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = run_sync(port.list(Query(state="in_doubt", scope=unique_name, limit=10, cursor=cursor)))
        found += [record.key for record in page.records]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == keys[::-1]
    run_sync(port.close())


@pytest.mark.parametrize("doubt", [False, True])
def test_a_claim_that_is_renewed_between_two_pages_is_not_missed(port: Port, unique_name: str, doubt: bool) -> None:
    """Operators list claims while all of them have heartbeats."""
    claims = [
        Claim(unique_name, f"{n}", os.urandom(16), (60 + n) * SECOND, HOUR, doubt_on_lapse=doubt) for n in range(6)
    ]
    tokens = [answer(port, claim).token for claim in claims]
    page = run_sync(port.list(Query(state="claimed", scope=unique_name, limit=2)))
    found = {record.key for record in page.records}
    for claim, token in zip(claims, tokens, strict=True):
        assert ask(port, Renewal(claim.scope, claim.key, claim.owner, token, 120 * SECOND, HOUR)) is True
    while page.cursor is not None:
        page = run_sync(port.list(Query(state="claimed", scope=unique_name, limit=2, cursor=page.cursor)))
        found |= {record.key for record in page.records}
    assert found == {claim.key for claim in claims}


def test_a_count_that_stopped_before_the_end_is_called_approximate(
    timeless: TimelessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = timeless.sync_port()
    for n in range(4):
        assert ask(port, Remember("scope", f"{n}", HOUR, b"", b"x" * 390_000)) is True
    stats = run_sync(port.stats())
    assert (stats.counts["done"], stats.approximate) == (4, ())
    monkeypatch.setattr("effectonce.backends.dynamodb.index.MAX_COUNT_REQUESTS", 1)
    stats = run_sync(port.stats())
    assert 0 < stats.counts["done"] < 4
    assert stats.approximate == ("done",)
    run_sync(port.close())


@pytest.mark.parametrize("cursor", ["", "x", "bm90IGpzb24=", "WzFd", "e30=", "é"])
@pytest.mark.parametrize("state", [None, "in_doubt"])
def test_a_cursor_of_another_listing_is_refused(port: Port, state: Any, cursor: str) -> None:
    with pytest.raises(InvalidOption, match="cursor"):
        run_sync(port.list(Query(state=state, cursor=cursor)))


# -- time


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
    assert service.clock.uncertainty() == pytest.approx(sharp + 3600 * SECOND / ServerClock.DRIFT, rel=0.01)


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
    assert not clock.known
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
    first = a_claim(key, lease=30 * SECOND)
    token = answer(early, first).token
    rival = answer(late, a_claim(key, lease=30 * SECOND))
    assert rival.kind == "in_progress"
    assert 28 < rival.retry_after < 32
    assert ask(early, done(first, token)) is True
    for port in skewed:
        run_sync(port.close())


def test_a_claim_reckoned_from_a_time_that_jumped_is_given_back(table: str, key: str) -> None:
    """F11: a stopped machine's monotonic clock may stand still meanwhile."""
    stopped = 0
    port = DynamoDBBackend(Address(table), clock=ServerClock(lambda: real_time() - stopped)).sync_port()
    run_sync(port.now())
    stopped = HOUR
    reply = ask(port, a_claim(key, doubt_on_lapse=True))
    assert isinstance(reply, StoreUnavailable)
    assert "moved apart" in str(reply)
    record = run_sync(port.get("scope", key))
    assert record is not None
    assert (record.state, record.attempts) == ("free", 0)
    again = answer(port, a_claim(key))
    assert (again.kind, again.attempts, again.lapsed) == ("claimed", 1, False)
    run_sync(port.close())


def test_a_renewal_reckoned_from_a_time_that_jumped_is_made_again(table: str, key: str) -> None:
    stopped = 0
    port = DynamoDBBackend(Address(table), clock=ServerClock(lambda: real_time() - stopped)).sync_port()
    claim = a_claim(key)
    token = answer(port, claim).token
    stopped = HOUR
    assert ask(port, Renewal("scope", key, claim.owner, token, 60 * SECOND, HOUR)) is True
    record = run_sync(port.get("scope", key))
    assert record is not None
    assert record.lease_until is not None
    assert abs(record.lease_until - run_sync(port.now()) - 60 * SECOND) < 3 * SECOND
    run_sync(port.close())


def test_a_lease_too_short_for_what_is_known_of_the_time_is_not_granted(port: Port, key: str) -> None:
    """Skew over a quarter of the lease is refused; what is finished is told all the same."""
    reply = ask(port, a_claim(key, lease=20_000))
    assert isinstance(reply, StoreUnavailable)
    assert "lease" in str(reply)
    assert run_sync(port.get("scope", key)) is None
    claim = a_claim(key)
    assert ask(port, done(claim, answer(port, claim).token, b"r")) is True
    assert answer(port, a_claim(key, lease=20_000)).result == b"r"


def test_a_short_lease_is_granted_once_the_turn_of_the_second_was_seen(table: str, key: str) -> None:
    backend = DynamoDBBackend(Address(table))
    port = backend.sync_port()
    run_sync(port.now())
    assert backend.server_clock.uncertainty() > 250_000
    assert answer(port, a_claim(key, lease=SECOND)).kind == "claimed"
    assert backend.server_clock.uncertainty() <= 250_000
    run_sync(port.close())


UNSURE = 500_000


@pytest.mark.parametrize("off", [-UNSURE, 0, UNSURE])
def test_a_process_unsure_of_the_time_ends_no_lease_early(timeless: TimelessBackend, off: int) -> None:
    """F12: half a second, as after the first reply. It may be late instead."""
    owner = timeless.sync_port()
    clock = Told(timeless.clock.now)
    clock.offset, clock.wrong = off, UNSURE
    unsure = DynamoDBBackend(Address(str(timeless.target)), clock=clock).sync_port()
    claims = [a_claim("rerun", lease=2 * SECOND), a_claim("doubt", lease=2 * SECOND, doubt_on_lapse=True)]
    tokens = [answer(owner, claim).token for claim in claims]
    word = Resolution(state="done", retention=HOUR)

    timeless.clock.advance_micros(2 * SECOND - 1)
    assert run_sync(unsure.sweep(10)) == SweepResult(0, 0, False)
    assert run_sync(unsure.resolve("scope", "doubt", word)) is False
    for claim, token in zip(claims, tokens, strict=True):
        for op in (a_claim(claim.key), Look("scope", claim.key)):
            told = answer(unsure, op)
            assert (told.kind, told.retry_after > 0) == ("in_progress", True)
        assert ask(unsure, Remember("scope", claim.key, HOUR)) is False
        assert ask(owner, Renewal("scope", claim.key, claim.owner, token, 2 * SECOND, HOUR)) is True

    timeless.clock.advance_micros(2 * SECOND + 2 * UNSURE)
    assert run_sync(unsure.sweep(1)) == SweepResult(0, 1, False)
    assert answer(unsure, a_claim("doubt")).kind == "in_doubt"
    taken = answer(unsure, a_claim("rerun"))
    assert (taken.kind, taken.lapsed) == ("claimed", True)


@pytest.mark.parametrize("ahead", [0, HOUR])
def test_a_repeated_claim_tells_again_that_it_took_a_lapsed_lease(timeless: TimelessBackend, ahead: int) -> None:
    """F68: in one write, and in two, as where the old token is ahead of the clock."""
    port = timeless.sync_port()
    first = a_claim("k", lease=SECOND)
    token = answer(port, first).token
    poke(str(timeless.target), "k", token=token + ahead)
    timeless.clock.advance_micros(SECOND)
    second, third = a_claim("k"), a_claim("k")
    taken = answer(port, second)
    assert (taken.kind, taken.lapsed) == ("claimed", True)
    assert answer(port, second) == taken
    assert ask(port, Settlement("scope", "k", second.owner, taken.token, "free", HOUR)) is True
    again = answer(port, third)
    assert (again.kind, again.lapsed) == ("claimed", False)
    assert answer(port, third) == again


# -- errors


def refusal(code: str, message: str = "", status: int = 400) -> Exception:
    from botocore.exceptions import ClientError

    reply = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error: Exception = ClientError(reply, "UpdateItem")
    return error


@pytest.mark.parametrize(
    ("error", "ours", "says"),
    [
        (refusal("ProvisionedThroughputExceededException"), StoreUnavailable, "throttled"),
        (refusal("ThrottlingException"), StoreUnavailable, "throttled"),
        (refusal("ResourceNotFoundException"), SchemaMissing, "effectonce migrate"),
        (refusal("AccessDeniedException"), ConfigurationError, "policy"),
        (refusal("UnrecognizedClientException"), ConfigurationError, "credentials"),
        (refusal("InvalidSignatureException", "Signature expired: 2026… is now earlier"), ConfigurationError, "NTP"),
        (refusal("InternalServerError", status=500), ConnectionLost, "failed"),
        (refusal("ValidationException", "The provided key element does not match the schema"), SchemaMismatch, "own"),
        (refusal("SomethingNew", "words"), ConfigurationError, "words"),
    ],
    ids=lambda value: None if isinstance(value, str | type) else value.response["Error"]["Code"],
)
def test_refusals_become_our_errors(error: Exception, ours: type[Exception], says: str) -> None:
    translated = translate(error, parse_target(Address("dynamodb://orders?region=eu-west-1")))
    assert type(translated) is ours
    assert says in str(translated)
    assert "dynamodb://orders" in str(translated)


def both_colours(url: str, work: Callable[[Port], Coroutine[Any, Any, Any]], colour: str) -> Any:
    backend = DynamoDBBackend(Address(url))

    async def on(port: Port) -> Any:
        try:
            return await work(port)
        finally:
            await port.close()

    if colour == "sync":
        return run_sync(on(backend.sync_port()))

    async def within() -> Any:
        return await on(backend.async_port())

    return asyncio.run(within())


COLOURS = pytest.mark.parametrize("colour", ["sync", "async"])


@COLOURS
def test_a_table_that_is_not_there_is_schema_missing(dynamodb_url: str, colour: str, unique_name: str) -> None:
    with pytest.raises(SchemaMissing, match="effectonce migrate"):
        both_colours(at(dynamodb_url, unique_name), lambda port: port.run([a_claim("k")]), colour)


@COLOURS
def test_a_port_where_nobody_listens_is_unavailable_at_once(colour: str, aws: None) -> None:
    """F36."""
    url = f"dynamodb://orders?region=us-east-1&endpoint=http://127.0.0.1:{free_port()}"
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable):
        both_colours(url, lambda port: port.run([a_claim("k")]), colour)
    assert time.monotonic() - begun < 4


@pytest.fixture
def aws(dynamodb_url: str) -> None:
    """Credentials in the environment."""


@COLOURS
def test_a_service_that_hangs_is_unavailable_within_the_timeout(table: str, colour: str, key: str) -> None:
    """F36: in mid-use, and for all of a batch; once it answers again, so do we."""
    with FaultProxy(urlsplit(table.partition("endpoint=")[2]).port or 0) as proxy:

        async def work(port: Port) -> list[Any]:
            await port.now()
            proxy.blackhole = True
            begun = time.monotonic()
            replies = await port.run([a_claim(f"{key}-{n}") for n in range(3)])
            assert time.monotonic() - begun < 4
            proxy.heal()
            proxy.reset()
            (again,) = await port.run([a_claim(f"{key}-again")])
            assert isinstance(again, Answer)
            return list(replies)

        replies = both_colours(f"{proxy.through(table)}&timeout=1s&connect_timeout=1s", work, colour)
    assert [type(reply) for reply in replies] == [StoreUnavailable] * 3


@COLOURS
def test_a_claim_and_a_completion_whose_replies_are_lost_answer_as_if_they_were_not(
    table: str, colour: str, key: str
) -> None:
    """F68: the SDK sends them again by itself."""
    with FaultProxy(urlsplit(table.partition("endpoint=")[2]).port or 0) as proxy:

        async def work(port: Port) -> None:
            await port.now()
            claim = a_claim(key, max_attempts=1)
            proxy.drop_reply(to=b"UpdateItem")
            (granted,) = await port.run([claim])
            assert isinstance(granted, Answer)
            assert (granted.kind, granted.attempts) == ("claimed", 1)
            release = Settlement("scope", key, claim.owner, granted.token, "free", HOUR, refund=True)
            proxy.drop_reply(to=b"UpdateItem")
            assert list(await port.run([release])) == [True]
            record = await port.get("scope", key)
            assert record is not None
            assert (record.state, record.attempts) == ("free", 0)
            proxy.drop_reply(to=b"PutItem")
            assert list(await port.run([Remember("scope", f"{key}-s", HOUR)])) == [True]

        both_colours(proxy.through(table), work, colour)


@COLOURS
def test_what_an_operator_did_is_done_once_where_the_reply_is_lost(table: str, colour: str, key: str) -> None:
    """F68: the SDK sends it again, and it finds its own write."""
    with FaultProxy(urlsplit(table.partition("endpoint=")[2]).port or 0) as proxy:

        async def work(port: Port) -> None:
            claim = a_claim(key)
            (granted,) = await port.run([claim])
            assert isinstance(granted, Answer)
            doubt = Settlement("scope", key, claim.owner, granted.token, "in_doubt", HOUR)
            assert list(await port.run([doubt])) == [True]
            for generation in (1, 2):
                proxy.drop_reply(to=b"PutItem")
                if generation == 1:
                    assert await port.resolve("scope", key, Resolution(state="free", retention=HOUR)) is True
                else:
                    assert await port.forget("scope", key, HOUR) is True
                record = await port.get("scope", key)
                assert record is not None
                assert (record.state, record.generation) == ("free", generation)

        both_colours(proxy.through(table), work, colour)


def test_no_credentials_is_a_configuration_error(
    dynamodb_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with pytest.raises(ConfigurationError, match="credentials"):
        run_sync(DynamoDBBackend(Address(dynamodb_url)).sync_port().now())
    with pytest.raises(ConfigurationError, match="region"):
        run_sync(DynamoDBBackend(Address("dynamodb://orders")).sync_port().now())
    with pytest.raises(ConfigurationError, match="profile"):
        run_sync(DynamoDBBackend(Address("dynamodb://orders?region=us-east-1&profile=none")).sync_port().now())


# -- addresses


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://ab",
        "dynamodb://orders/path",
        "dynamodb://orders;drop",
        "dynamodb://orders?regoin=eu-west-1",
        "dynamodb://orders?timeout=soon",
        "dynamodb://orders?endpoint=127.0.0.1:8000",
        "dynamodb://AKIAX:canary-password@orders",
        "dynamodb://orders?endpoint=http://me:canary-password@127.0.0.1:8000",
    ],
)
def test_a_bad_address_is_refused_without_its_secret(url: str) -> None:
    """F61, F66."""
    with pytest.raises(InvalidOption) as caught:
        DynamoDBBackend(Address(url))
    assert "canary" not in str(caught.value)


def test_an_address_keeps_the_case_of_its_table_and_shows_no_more_than_it_should() -> None:
    backend = DynamoDBBackend(Address("dynamodb://Orders.v2-EU?region=eu-west-1&timeout=500ms&connect_timeout=2"))
    assert (backend.target.table, backend.target.timeout, backend.target.connect_timeout) == ("Orders.v2-EU", 0.5, 2.0)
    assert repr(backend) == "dynamodb://Orders.v2-EU?region=eu-west-1"


def test_without_the_sdk_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effectonce.backends.common.drivers.find_spec", lambda name: None)
    with pytest.raises(MissingDriver, match=r"effectonce\[dynamodb\]"):
        DynamoDBBackend(Address("dynamodb://orders"))


def test_importing_the_store_imports_no_sdk() -> None:
    code = "import sys, effectonce.backends.dynamodb.store; sys.exit(any('boto' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- schema


def test_migrations_at_the_same_time_agree(dynamodb_url: str, unique_name: str) -> None:
    backend = DynamoDBBackend(Address(at(dynamodb_url, unique_name)))

    async def race() -> None:
        ports = [backend.async_port() for _ in range(5)]
        await asyncio.gather(*(port.migrate() for port in ports))
        await ports[0].check()
        await asyncio.gather(*(port.close() for port in ports))

    asyncio.run(race())


def test_a_table_of_something_else_is_refused(dynamodb_url: str, unique_name: str) -> None:
    raw_client(dynamodb_url).create_table(
        TableName=unique_name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
    )
    port = DynamoDBBackend(Address(at(dynamodb_url, unique_name))).sync_port()
    for work in (port.migrate, port.check, port.now):
        with pytest.raises(SchemaMismatch):
            run_sync(work())


def test_a_newer_schema_and_a_switched_off_time_to_live_are_found(dynamodb_url: str, unique_name: str) -> None:
    backend = DynamoDBBackend(Address(at(dynamodb_url, unique_name)))
    port = backend.sync_port()
    run_sync(port.migrate())
    run_sync(port.check())
    client = raw_client(dynamodb_url)
    client.update_time_to_live(
        TableName=unique_name, TimeToLiveSpecification={"Enabled": False, "AttributeName": "expires"}
    )
    with pytest.raises(SchemaMissing, match="time to live"):
        run_sync(port.check())
    client.put_item(TableName=unique_name, Item={"id": {"B": b"effectonce"}, "schema": {"N": "99"}})
    for work in (backend.sync_port().now, backend.sync_port().migrate):
        with pytest.raises(SchemaMismatch, match="upgrade effectonce"):
            run_sync(work())


def test_a_table_replicated_to_other_regions_is_refused(table: str) -> None:
    """The last of two writes wins there, so that conditions hold nothing."""
    client = raw_client(table)
    replicas = [{"RegionName": "eu-west-1", "ReplicaStatus": "ACTIVE"}]
    client.meta.events.register(
        "after-call.dynamodb.DescribeTable", lambda parsed, **_: parsed["Table"].update(Replicas=replicas)
    )
    port = DynamoDBBackend.from_client(client, urlsplit(table).netloc).sync_port()
    for work in (port.check, port.migrate):
        with pytest.raises(UnsafeStore, match="replicas"):
            run_sync(work())


def test_the_printed_schema_makes_the_table_that_migrate_makes(dynamodb_url: str, unique_name: str) -> None:
    backend = DynamoDBBackend(Address(at(dynamodb_url, unique_name)))
    client = raw_client(dynamodb_url)
    for line in backend.schema_sql().splitlines():
        command, _, rest = line.partition(" --cli-input-json ")
        if rest:
            options = json.loads(rest.strip("'"))
            if "Item" in options:  # the command line reads base64
                options["Item"]["id"] = {"B": b"effectonce"}
            getattr(client, command.removeprefix("aws dynamodb ").replace("-", "_"))(**options)
    run_sync(backend.sync_port().check())
