"""The DynamoDB store: the contract for sync and async code, and what one conditional write cannot say."""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from effectonce.backends.dynamodb.store import DynamoDBBackend
from effectonce.contracts import Port
from effectonce.core.run_sync import run_sync
from effectonce.errors import CorruptRecord, InvalidOption
from effectonce.keys import digest
from effectonce.record import EXHAUSTED_ERROR, Answer, Batchable, Claim, Look, Query, Remember, Renewal, Settlement
from effectonce.testing.suites import StoreCase, store_cases, store_suite
from effectonce.values.urls import Address

from .table import (
    FAR,
    HOUR,
    SECOND,
    TimelessBackend,
    claim_answer,
    complete,
    freeze_clock,
    make_claim,
    raw_client,
    read_item,
    run_one,
    set_numbers,
    table_url,
)

pytest.importorskip("botocore.session", reason="pip install 'effectonce[dynamodb]'")

pytestmark = pytest.mark.quick_on("async")


@pytest.fixture(scope="module")
def backend(dynamodb_url: str) -> DynamoDBBackend:
    url = table_url(dynamodb_url, f"suite-{uuid.uuid4().hex}")
    return TimelessBackend(Address(f"{url}&timeout=60s&connect_timeout=60s"))


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
    """Some of the contract again, on the time that users have. Sync and async code wait at once, on a table each."""

    def run(kind: Any) -> None:
        case.run(DynamoDBBackend(Address(table_url(dynamodb_url, f"suite-{uuid.uuid4().hex}"))), kind)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, case.port_kinds))


# -- one request each


class RequestLog:
    """The requests that a client of the caller's sends."""

    def __init__(self, client: Any) -> None:
        self.names: list[str] = []
        client.meta.events.register("before-send.dynamodb", self._sent)

    def _sent(self, request: Any, **_: Any) -> None:
        target = request.headers["X-Amz-Target"]
        name = target if isinstance(target, str) else target.decode()
        self.names.append(name.partition(".")[2])

    def take(self) -> list[str]:
        names, self.names[:] = list(self.names), []
        return names


async def _requests_of_a_guarded_call(
    backend: DynamoDBBackend, port: Port, sent: RequestLog, key: str
) -> dict[str, list[str]]:
    await freeze_clock(backend, port)
    sent.take()
    requests: dict[str, list[str]] = {}

    async def step(name: str, op: Batchable) -> Any:
        (reply,) = await port.run([op])
        requests[name] = sent.take()
        return reply

    first = make_claim(key)
    token = (await step("claim", first)).token
    assert (await step("rival", make_claim(key))).kind == "in_progress"
    assert await step("renewal", Renewal("scope", key, first.owner, token, SECOND * 60, HOUR)) is True
    assert await step("release", Settlement("scope", key, first.owner, token, "free", HOUR)) is True
    second = make_claim(key)
    again = await step("claim of a free record", second)
    assert (again.kind, again.attempts) == ("claimed", 2)
    assert await step("completion", complete(second, again.token, b"r")) is True
    assert (await step("duplicate", make_claim(key))).result == b"r"
    assert (await step("look", Look("scope", key))).kind == "done"
    assert await step("remember", Remember("scope", key + "-s", HOUR)) is True
    return requests


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
    assert run_sync(_requests_of_a_guarded_call(backend, port, RequestLog(client), key)) == ONE_EACH
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
        assert await _requests_of_a_guarded_call(backend, port, RequestLog(client), key) == ONE_EACH
        await port.close()
        await client.list_tables()
        heartbeat = backend.sync_port()  # the other kind opens its own client at the same place
        assert claim_answer(heartbeat, Look("scope", key)).kind == "done"
        await heartbeat.close()


# -- what one expression cannot say, and what DynamoDB does late


def test_an_expired_item_that_is_still_there_is_absent(table: str, port: Port, key: str) -> None:
    """F39: DynamoDB deletes expired items hours late."""
    first = make_claim(key)
    token = claim_answer(port, first).token
    assert run_one(port, complete(first, token, b"old")) is True
    set_numbers(table, key, expires_at=run_sync(port.now()) - 2 * SECOND, attempts=9, generation=4)
    assert read_item(table, key)["result"]["B"] == b"old"
    assert run_sync(port.get("scope", key)) is None
    assert claim_answer(port, Look("scope", key)).kind == "absent"
    taken = claim_answer(port, make_claim(key))
    assert (taken.kind, taken.attempts, taken.generation, taken.lapsed) == ("claimed", 1, 0, False)
    assert taken.token > token
    assert "result" not in read_item(table, key)


def test_a_token_grows_even_where_the_old_one_is_ahead_of_the_clock(table: str, port: Port, key: str) -> None:
    """F69."""
    first = make_claim(key)
    token = claim_answer(port, first).token
    assert run_one(port, Settlement("scope", key, first.owner, token, "free", HOUR)) is True
    ahead = run_sync(port.now()) + HOUR
    set_numbers(table, key, token=ahead)
    taken = claim_answer(port, make_claim(key))
    assert (taken.kind, taken.token, taken.attempts) == ("claimed", ahead + 1, 2)


def test_dynamodb_will_delete_what_expires_and_nothing_else(table: str, port: Port, key: str) -> None:
    """Its time to live reads ``expires``, in seconds: absent or far for what may lapse into doubt (F26)."""
    plain, doubtful = make_claim(key), make_claim(f"{key}-d", doubt_on_lapse=True)
    token, doubtful_token = claim_answer(port, plain).token, claim_answer(port, doubtful).token

    def ends(key: str) -> int | None:
        item = read_item(table, key)
        return int(item["expires"]["N"]) if "expires" in item else None

    due = token / 1e6 + 60 + 3600
    assert due <= (ends(key) or 0) < due + 2
    assert ends(f"{key}-d") == FAR
    for claim, claim_token in ((plain, token), (doubtful, doubtful_token)):
        assert run_one(port, Renewal(claim.scope, claim.key, claim.owner, claim_token, 600 * SECOND, HOUR)) is True
    spent = time.time() - token / 1e6
    assert due + 540 <= (ends(key) or 0) < due + 540 + spent + 2
    assert ends(f"{key}-d") == FAR
    record = run_sync(port.get("scope", f"{key}-d"))
    assert record is not None
    assert record.expires_at is None
    settlement = replace(complete(doubtful, doubtful_token), state="in_doubt")
    assert run_one(port, settlement) is True
    assert ends(f"{key}-d") is None
    assert run_one(port, complete(doubtful, doubtful_token)) is True
    assert token / 1e6 + 3600 - 1 <= (ends(f"{key}-d") or 0) <= time.time() + 3600 + 2


def test_a_result_over_the_size_of_an_item_is_dropped_and_the_record_is_done(port: Port, key: str) -> None:
    """F18: never rerun for want of room."""
    claim = make_claim(key)
    token = claim_answer(port, claim).token
    assert run_one(port, complete(claim, token, b"x" * 410_000)) is True
    duplicate = claim_answer(port, make_claim(key))
    assert (duplicate.kind, duplicate.result) == ("done", None)
    assert run_one(port, Remember("scope", f"{key}-s", HOUR, b"", b"x" * 410_000)) is True
    assert claim_answer(port, Look("scope", f"{key}-s")).kind == "done"


def test_a_poisoned_item_is_an_error_of_its_own_operation(table: str, port: Port, key: str) -> None:
    """F60."""
    claim_answer(port, make_claim(key))
    raw_client(table).put_item(
        TableName=urlsplit(table).netloc, Item={"id": {"B": digest("scope", key)}, "state": {"S": "pickled"}}
    )
    replies = run_sync(port.run(sorted([make_claim(key), make_claim(f"{key}-b")], key=lambda op: op.key)))
    assert isinstance(replies[0], CorruptRecord)
    assert isinstance(replies[1], Answer)
    raw_client(table).delete_item(TableName=urlsplit(table).netloc, Key={"id": {"B": digest("scope", key)}})


def test_all_of_a_race_for_a_record_without_attempts_get_exhausted(port: Port, table: str, key: str) -> None:
    """Writes depend on the version that was read: a claim that loses decides again from the winner's item."""
    first = make_claim(key)
    token = claim_answer(port, first).token
    assert run_one(port, Settlement("scope", key, first.owner, token, "free", HOUR)) is True

    async def race() -> list[Any]:
        backend = DynamoDBBackend(Address(table))
        ports = [backend.async_port() for _ in range(8)]
        try:
            replies = await asyncio.gather(*(port.run([make_claim(key, max_attempts=1)]) for port in ports))
            return [reply for (reply,) in replies]
        finally:
            await asyncio.gather(*(port.close() for port in ports))

    assert {(reply.kind, reply.error) for reply in asyncio.run(race())} == {("exhausted", EXHAUSTED_ERROR)}


@pytest.mark.parametrize("ahead", [0, HOUR])
def test_a_repeated_claim_answers_again_that_it_took_a_lapsed_lease(timeless: TimelessBackend, ahead: int) -> None:
    """F68: in one write, and in two, as where the old token is ahead of the clock."""
    port = timeless.sync_port()
    first = make_claim("k", lease=SECOND)
    token = claim_answer(port, first).token
    set_numbers(str(timeless.target), "k", token=token + ahead)
    timeless.clock.advance_micros(SECOND)
    second, third = make_claim("k"), make_claim("k")
    taken = claim_answer(port, second)
    assert (taken.kind, taken.lapsed) == ("claimed", True)
    assert claim_answer(port, second) == taken
    assert run_one(port, Settlement("scope", "k", second.owner, taken.token, "free", HOUR)) is True
    again = claim_answer(port, third)
    assert (again.kind, again.lapsed) == ("claimed", False)
    assert claim_answer(port, third) == again


# -- listing


def test_states_are_listed_newest_first_across_the_shards(table: str, unique_name: str) -> None:
    backend = DynamoDBBackend(Address(table))
    port = backend.sync_port()
    run_sync(freeze_clock(backend, port))
    keys = [f"{unique_name}-{n}" for n in range(25)]
    for key in keys:
        claim = Claim(unique_name, key, os.urandom(16), 60 * SECOND, HOUR)
        token = claim_answer(port, claim).token
        assert run_one(port, Settlement(unique_name, key, claim.owner, token, "in_doubt", HOUR)) is True
    listed: list[str] = []
    cursor: str | None = None
    while True:
        page = run_sync(port.list(Query(state="in_doubt", scope=unique_name, limit=10, cursor=cursor)))
        listed += [record.key for record in page.records]
        cursor = page.cursor
        if cursor is None:
            break
    assert listed == keys[::-1]
    run_sync(port.close())


@pytest.mark.parametrize("doubt", [False, True])
def test_a_claim_that_is_renewed_between_two_pages_is_not_missed(port: Port, unique_name: str, doubt: bool) -> None:
    """Operators list claims while all of them have heartbeats."""
    claims = [
        Claim(unique_name, f"{n}", os.urandom(16), (60 + n) * SECOND, HOUR, doubt_on_lapse=doubt) for n in range(6)
    ]
    tokens = [claim_answer(port, claim).token for claim in claims]
    page = run_sync(port.list(Query(state="claimed", scope=unique_name, limit=2)))
    listed = {record.key for record in page.records}
    for claim, token in zip(claims, tokens, strict=True):
        assert run_one(port, Renewal(claim.scope, claim.key, claim.owner, token, 120 * SECOND, HOUR)) is True
    while page.cursor is not None:
        page = run_sync(port.list(Query(state="claimed", scope=unique_name, limit=2, cursor=page.cursor)))
        listed |= {record.key for record in page.records}
    assert listed == {claim.key for claim in claims}


def test_a_count_that_stopped_before_the_end_is_called_approximate(
    timeless: TimelessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = timeless.sync_port()
    for n in range(4):
        assert run_one(port, Remember("scope", f"{n}", HOUR, b"", b"x" * 390_000)) is True
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
