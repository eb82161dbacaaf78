"""Which requests the store makes of DynamoDB, and what it makes of rare replies, with a stand-in for the service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import iscoroutinefunction
from types import SimpleNamespace
from typing import Any

import pytest

from effectonce.backends.common.aws_sdk import AWSTarget
from effectonce.backends.dynamodb import index, port, schema
from effectonce.backends.dynamodb.client import (
    AsyncDynamoDBClient,
    ConditionFailed,
    SyncDynamoDBClient,
    TableInUse,
    translate,
)
from effectonce.backends.dynamodb.clock import ServerClock
from effectonce.backends.dynamodb.items import StoredItem, decode, encode, unwrap, whole_seconds
from effectonce.backends.dynamodb.operations import Operations
from effectonce.backends.dynamodb.port import DynamoDBPort
from effectonce.backends.dynamodb.schema import META_ID, SCHEMA_VERSION, TABLE_DEFINITION
from effectonce.contracts import ConnectionLost
from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    InvalidOption,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    UnsafeStore,
)
from effectonce.record import Answer, Claim, Look, Query, Remember, Renewal, Resolution, Settlement
from effectonce.values.cursors import write_cursor
from effectonce.values.identity import digest

from .table import FixedClock, make_claim

NOW = 4_102_444_800_000_000
META = {"id": {"B": META_ID}, "schema": {"N": str(SCHEMA_VERSION)}}
ACTIVE = {"TableStatus": "ACTIVE", **{name: TABLE_DEFINITION[name] for name in ("KeySchema", "GlobalSecondaryIndexes")}}
ENABLED = {"TimeToLiveDescription": {"AttributeName": "expires", "TimeToLiveStatus": "ENABLED"}}

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class Service(SyncDynamoDBClient):
    """Answers each operation by its handler, and notes the calls."""

    def __init__(self, clock: ServerClock | None = None, **replies: Any) -> None:
        super().__init__(AWSTarget(service="dynamodb", table="table"), clock or FixedClock(lambda: NOW))
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.pauses: list[float] = []
        self._replies = {"get_item": {"Item": META}, "describe_table": {"Table": ACTIVE}, **replies}
        self._replies.setdefault("describe_time_to_live", ENABLED)

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        self.calls.append((operation, parameters))
        reply = self._replies.get(operation, {})
        if isinstance(reply, list):
            reply = reply.pop(0)
        if isinstance(reply, Exception):
            raise reply
        result: dict[str, Any] = reply(parameters) if callable(reply) else reply
        return result

    async def gather(self, work: Any, items: Any) -> list[Any]:
        return [await work(item) for item in items]

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def made(self, operation: str) -> list[dict[str, Any]]:
        return [parameters for name, parameters in self.calls if name == operation]


def record(key: str, **fields: Any) -> StoredItem:
    known = {"state": "done", "created_at": 1, "changed_at": 2, "expires_at": NOW + 1, "token": 1, "version": 1}
    return StoredItem(scope="scope", key=key, **{**known, **fields})


def item(key: str, **fields: Any) -> dict[str, Any]:
    return encode(record(key, **fields), b"write")


# -- the table


@pytest.mark.parametrize("status", ["ENABLED", "ENABLING"])
def test_a_table_that_deletes_what_has_expired_passes(status: str) -> None:
    ttl = {"TimeToLiveDescription": {"AttributeName": "expires", "TimeToLiveStatus": status}}
    run_sync(schema.check_table(Service(describe_time_to_live=ttl)))


@pytest.mark.parametrize(
    "ttl",
    [
        {"TimeToLiveStatus": "DISABLED"},
        {"TimeToLiveStatus": "DISABLING", "AttributeName": "expires"},
        {"TimeToLiveStatus": "ENABLED", "AttributeName": "other"},
    ],
)
def test_a_table_that_does_not_is_refused(ttl: dict[str, str]) -> None:
    with pytest.raises(SchemaMissing, match="time to live"):
        run_sync(schema.check_table(Service(describe_time_to_live={"TimeToLiveDescription": ttl})))


def test_a_table_without_the_index_was_made_by_others() -> None:
    other_index = [{**ACTIVE["GlobalSecondaryIndexes"][0], "KeySchema": []}]
    for table in ({**ACTIVE, "GlobalSecondaryIndexes": []}, {**ACTIVE, "GlobalSecondaryIndexes": other_index}):
        with pytest.raises(SchemaMismatch):
            run_sync(schema.check_table(Service(describe_table={"Table": table})))


@pytest.mark.parametrize(
    ("meta", "kind", "remedy"),
    [
        (None, SchemaMissing, "effectonce migrate"),
        ({}, SchemaMismatch, "effectonce migrate"),
        ({"schema": {"N": "0"}}, SchemaMismatch, "effectonce migrate"),
        ({"schema": {"N": "2"}}, SchemaMismatch, "upgrade effectonce"),
    ],
)
def test_another_version_says_what_to_upgrade(meta: Any, kind: type[Exception], remedy: str) -> None:
    with pytest.raises(kind, match=remedy):
        schema.require_version(meta, Service())


def test_a_table_that_is_being_created_is_waited_for() -> None:
    creating = {"Table": {**ACTIVE, "TableStatus": "CREATING"}}
    service = Service(describe_table=[SchemaMissing("x"), SchemaMissing("x"), creating, {"Table": ACTIVE}])
    service._replies["create_table"] = [{}, TableInUse("x")]
    run_sync(schema.migrate_table(service))
    assert (len(service.made("create_table")), len(service.pauses)) == (2, 1)
    assert service.made("put_item")[0]["Item"]["schema"] == {"N": "1"}
    assert service.made("update_time_to_live") == []  # it is on already


def test_a_table_that_never_becomes_active_is_unavailable() -> None:
    service = Service(describe_table={"Table": {**ACTIVE, "TableStatus": "CREATING"}})
    with pytest.raises(StoreUnavailable, match="migrate again"):
        run_sync(schema.migrate_table(service))


def test_time_to_live_is_switched_on_unless_another_process_was_faster() -> None:
    off = {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}
    service = Service(describe_time_to_live=off)
    run_sync(schema.migrate_table(service))
    assert len(service.made("update_time_to_live")) == 1
    refused = ConfigurationError("refused")
    run_sync(schema.migrate_table(Service(describe_time_to_live=[off, ENABLED], update_time_to_live=refused)))
    with pytest.raises(ConfigurationError, match="refused"):
        run_sync(schema.migrate_table(Service(describe_time_to_live=off, update_time_to_live=refused)))


def test_a_table_of_a_newer_release_is_not_migrated_back() -> None:
    with pytest.raises(SchemaMismatch, match="upgrade"):
        run_sync(schema.migrate_table(Service(put_item=ConditionFailed({"schema": {"N": "2"}}))))


# -- getting ready


def test_a_port_reads_the_version_once() -> None:
    service = Service()
    for _ in range(2):
        run_sync(DynamoDBPort.now(ready := DynamoDBPort(service)))
        run_sync(ready.now())
    assert len(service.made("get_item")) == 2  # once for each port


def test_a_service_that_does_not_date_its_replies_is_refused() -> None:
    with pytest.raises(UnsafeStore, match="no Date"):
        run_sync(DynamoDBPort(Service(ServerClock())).now())


# -- lists and counts


def test_a_list_reads_again_what_the_service_left_out() -> None:
    identities = [digest("scope", str(n)) for n in range(3)]
    items = [item(str(n), state="failed") for n in range(3)]
    left_out = [{"id": items[2]["id"]}]
    replies = [
        {"Responses": {"table": items[:2]}, "UnprocessedKeys": {"table": {"Keys": left_out}}},
        {"Responses": {}, "UnprocessedKeys": {"table": {"Keys": left_out}}},
        {"Responses": {"table": items[2:]}},
    ]
    service = Service(batch_get_item=replies)
    assert set(run_sync(DynamoDBPort(service)._fetch(identities))) == set(identities)
    assert len(service.pauses) == 1  # only where it did nothing at all
    assert service.made("batch_get_item")[1]["RequestItems"]["table"]["Keys"] == left_out


def test_a_batch_of_reads_has_no_more_items_than_the_service_takes() -> None:
    service = Service(batch_get_item={"Responses": {}})
    run_sync(DynamoDBPort(service)._fetch([digest("scope", str(n)) for n in range(150)]))
    assert [len(call["RequestItems"]["table"]["Keys"]) for call in service.made("batch_get_item")] == [100, 50]


def test_reads_that_are_postponed_for_ever_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "MAX_BATCH_GET_ROUNDS", 3)

    def postpone(parameters: dict[str, Any]) -> dict[str, Any]:
        return {"Responses": {}, "UnprocessedKeys": parameters["RequestItems"]}

    with pytest.raises(StoreUnavailable, match="throttled"):
        run_sync(DynamoDBPort(Service(batch_get_item=postpone))._fetch([digest("scope", "key")]))


def test_a_filtered_list_stops_after_a_few_requests_and_goes_on_from_there() -> None:
    key = {"id": {"B": digest("scope", "k")}}
    service = Service(scan={"Items": [], "LastEvaluatedKey": key})
    page = run_sync(DynamoDBPort(service).list(Query(state="done", limit=10)))
    assert (page.records, len(service.made("scan"))) == ([], port.MAX_PAGE_SCANS)
    assert page.cursor is not None
    service._replies["scan"] = {"Items": [item("a")]}
    page = run_sync(DynamoDBPort(service).list(Query(state="done", limit=10, cursor=page.cursor)))
    assert service.made("scan")[-1]["ExclusiveStartKey"] == key
    assert ([each.key for each in page.records], page.cursor) == (["a"], None)


def test_a_full_page_ends_at_its_last_record_and_not_at_the_last_that_was_read() -> None:
    service = Service(scan={"Items": [item("a"), item("gone", expires_at=NOW), item("b"), item("c")]})
    page = run_sync(DynamoDBPort(service).list(Query(state="done", limit=2)))
    assert [each.key for each in page.records] == ["a", "b"]
    assert page.cursor is not None
    service._replies["scan"] = {"Items": []}
    run_sync(DynamoDBPort(service).list(Query(state="done", limit=2, cursor=page.cursor)))
    assert service.made("scan")[-1]["ExclusiveStartKey"] == {"id": {"B": digest("scope", "b")}}
    exactly = Service(scan={"Items": [item("a"), item("b")]})
    assert run_sync(DynamoDBPort(exactly).list(Query(state="done", limit=2))).cursor is None


def test_an_unfiltered_list_reads_no_more_than_a_page_and_one() -> None:
    service = Service(scan={"Items": []})
    run_sync(DynamoDBPort(service).list(Query(limit=10)))
    run_sync(DynamoDBPort(service).list(Query(limit=10, scope="scope")))
    assert [call["Limit"] for call in service.made("scan")] == [11, port.SCAN_ITEMS]


def test_a_count_adds_its_pages_and_says_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(scan=[{"Count": 2, "LastEvaluatedKey": {"id": 1}}, {"Count": 3}])
    assert run_sync(index.count_state(service, "done")) == (5, True)
    assert service.made("scan")[1]["ExclusiveStartKey"] == {"id": 1}
    monkeypatch.setattr(index, "MAX_COUNT_REQUESTS", 2)
    endless = Service(scan={"Count": 2, "LastEvaluatedKey": {"id": 1}})
    assert run_sync(index.count_state(endless, "done")) == (4, False)
    monkeypatch.setattr(index, "MAX_COUNT", 3)
    assert run_sync(index.count_state(endless, "done")) == (3, True)  # at the cap it need not be exact


def test_stats_have_the_oldest_doubt_of_all_shards() -> None:
    ranks = iter([7, 3, 5])

    def query(parameters: dict[str, Any]) -> dict[str, Any]:
        if "Select" in parameters:
            return {"Count": 1}
        rank = next(ranks, None)
        return {"Items": [] if rank is None else [{"rank": {"N": str(rank)}}]}

    service = Service(query=query, scan={"Count": 4})
    stats = run_sync(DynamoDBPort(service).stats())
    assert (stats.oldest_in_doubt, stats.swept_at, stats.approximate) == (3, None, ())
    assert stats.counts == {"claimed": 16, "done": 4, "failed": 8, "in_doubt": 8, "free": 8}


@pytest.mark.parametrize(
    "cursor", ["%%%", write_cursor("records", bytes(32)), write_cursor("records that are failed", [(1, bytes(32))])]
)
def test_a_cursor_of_another_list_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidOption, match="start again"):
        run_sync(DynamoDBPort(Service()).list(Query(state="failed", limit=1, cursor=cursor)))


# -- items


def test_an_item_says_when_dynamodb_may_delete_it() -> None:
    assert [whole_seconds(micros) for micros in (0, 1, 1_000_000, 1_000_001)] == [0, 1, 1, 2]
    doubtful = unwrap(item("k", state="claimed", doubt_on_lapse=True, lease_until=9))
    assert (doubtful["expires"], doubtful["rank"]) == (253_402_300_799, 9)
    plain = unwrap(item("k", state="claimed", lease_until=9, expires_at=1_500_000))
    assert (plain["expires"], plain["rank"], plain["since"]) == (2, 2, 2)
    assert "bucket" not in unwrap(item("k"))  # the index has no done records


@pytest.mark.parametrize(
    "damage", [{"state": {"S": "odd"}}, {"state": {"N": "1"}}, {"token": {"S": "x"}}, {"extra": {"L": []}}]
)
def test_an_item_of_another_program_is_corrupt(damage: dict[str, Any]) -> None:
    stored = {**item("k"), **damage}
    if damage == {"token": {"S": "x"}}:
        stored.pop("token")
    with pytest.raises(CorruptRecord, match="not a record"):
        decode(stored)


def test_a_lost_connection_repeats_the_whole_batch() -> None:
    service = Service()
    ready = DynamoDBPort(service)
    run_sync(ready.now())
    service._replies["get_item"] = ConnectionLost("gone")
    with pytest.raises(ConnectionLost):
        run_sync(ready.run([Look("scope", "key")]))


# -- errors


def test_the_stored_item_comes_with_a_failed_condition() -> None:
    for stored in ({"id": 1}, None):
        error: Any = SimpleNamespace()
        from botocore.exceptions import ClientError

        reply: Any = {"Error": {"Code": "ConditionalCheckFailedException"}, "Item": stored}
        error = translate(ClientError(reply, "PutItem"), Service().target)
        assert isinstance(error, ConditionFailed)
        assert error.item == stored


CALLS: dict[str, Any] = {
    "get": lambda port: port.get("scope", "key"),
    "forget": lambda port: port.forget("scope", "key", 1),
    "resolve": lambda port: port.resolve("scope", "key", Resolution(state="free", retention_us=1)),
    "list": lambda port: port.list(Query(limit=1)),
    "stats": lambda port: port.stats(),
    "sweep": lambda port: port.sweep(1),
    "now": lambda port: port.now(),
    "check": lambda port: port.check(),
    "run": lambda port: port.run([Look("scope", "key")]),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_refuses_a_table_that_is_not_prepared(name: str) -> None:
    with pytest.raises(SchemaMissing, match="not prepared"):
        run_sync(CALLS[name](DynamoDBPort(Service(get_item={}))))


def test_no_call_is_left_out_of_the_test_before() -> None:
    methods = {**vars(Operations), **vars(DynamoDBPort)}.items()
    calls = {name for name, method in methods if iscoroutinefunction(method) and not name.startswith("_")}
    assert calls - {"close", "migrate"} == set(CALLS)


# -- changes of a record that was read


def test_a_change_replaces_the_version_that_was_read_by_the_next() -> None:
    stored = item("key", state="in_doubt", version=7, token=5, expires_at=None)
    service = Service()
    ready = DynamoDBPort(service)
    run_sync(ready.now())
    service._replies["get_item"] = {"Item": stored}
    assert run_sync(ready.resolve("scope", "key", Resolution(state="done", retention_us=1))) is True
    (put,) = service.made("put_item")
    assert put["Item"]["version"] == {"N": "8"}
    assert put["ExpressionAttributeValues"] == {":version": {"N": "7"}, ":token": {"N": "5"}}


def test_a_record_that_is_absent_becomes_the_first_version() -> None:
    service = Service()
    assert run_sync(DynamoDBPort(service).run([Remember("scope", "key", retention_us=1)])) == [True]
    (put,) = service.made("put_item")
    assert put["Item"]["version"] == {"N": "1"}
    assert put["ConditionExpression"] == "attribute_not_exists(#id)"


def test_a_record_that_changes_under_every_attempt_is_contended() -> None:
    service = Service(put_item=ConditionFailed(item("key", state="free")))
    (reply,) = run_sync(DynamoDBPort(service).run([Remember("scope", "key", retention_us=1)]))
    assert isinstance(reply, StoreUnavailable)
    assert "changed 20 times" in str(reply)
    assert reply.retry_after == 0.1


def test_a_write_whose_reply_was_lost_is_recognised_by_its_name() -> None:
    def lose(parameters: dict[str, Any]) -> dict[str, Any]:
        raise ConditionFailed(parameters["Item"])

    service = Service(put_item=lose)
    assert run_sync(DynamoDBPort(service).run([Remember("scope", "key", retention_us=1)])) == [True]
    assert len(service.made("put_item")) == 1


@pytest.mark.parametrize(
    ("moved", "is_kept"), [(-1_000_000, True), (1_000_000, True), (1_000_001, False), (-1_000_001, False)]
)
def test_f11_a_claim_is_given_back_where_the_time_turned_out_wrong_by_more_than_a_quarter_of_its_lease(
    moved: int, is_kept: bool
) -> None:
    clock = FixedClock(lambda: NOW)

    def update(parameters: Any) -> dict[str, Any]:
        clock.offset = moved  # the reply has brought the service's time
        return {"Attributes": item("k", state="claimed", owner=b"o" * 16, token=7, attempts=1)}

    service = Service(clock, update_item=update)
    (reply,) = run_sync(DynamoDBPort(service).run([make_claim("k", lease=4_000_000)]))
    assert isinstance(reply, StoreUnavailable) is not is_kept
    assert len(service.made("update_item")) == (1 if is_kept else 2), "a claim that is given back is settled"


# -- probes of the service's time


class UncertainClock(FixedClock):
    """A clock that is wrong by a second, and that no probe makes more precise."""

    wrong = 1_000_000


@pytest.mark.parametrize(("lease_us", "is_granted"), [(4_000_000, True), (3_999_999, False)])
def test_f11_a_lease_is_granted_up_to_a_quarter_of_which_the_time_may_be_wrong(lease_us: int, is_granted: bool) -> None:
    ticks = iter(range(NOW, NOW + 100_000_000, 100_000))
    taken = {"Attributes": item("k", state="claimed", owner=b"o" * 16, token=7, attempts=1)}
    service = Service(UncertainClock(lambda: next(ticks)), update_item=taken)
    (reply,) = run_sync(DynamoDBPort(service).run([make_claim("k", lease=lease_us)]))
    assert isinstance(reply, Answer) is is_granted
    assert len(service.made("update_item")) == is_granted


@pytest.mark.parametrize(
    ("lease_us", "is_probed"), [(40_000, False), (40_004, True), (4_000_000, False), (3_000_000, True)]
)
def test_the_time_is_probed_for_leases_that_probes_can_help(lease_us: int, is_probed: bool) -> None:
    ticks = iter(range(NOW, NOW + 100_000_000, 100_000))
    service = Service(UncertainClock(lambda: next(ticks)))
    ready = DynamoDBPort(service)
    run_sync(ready.now())
    run_sync(ready.run([make_claim("key", lease=lease_us)]))
    assert bool(service.pauses) == is_probed


def test_probes_that_did_not_help_are_not_repeated_at_once() -> None:
    now = [NOW]
    service = Service(UncertainClock(lambda: now[0]))
    service.pause = lambda seconds: probe(seconds)  # type: ignore[method-assign]
    probes: list[float] = []

    async def probe(seconds: float) -> None:
        probes.append(seconds)
        now[0] += 500_000

    ready = DynamoDBPort(service)
    counts = []
    for _ in range(2):
        run_sync(ready.run([make_claim("key", lease=1_000_000)]))
        counts.append(len(probes))
    now[0] += 10_000_000
    run_sync(ready.run([make_claim("key", lease=1_000_000)]))
    assert counts == [3, 3]
    assert len(probes) == 6
    assert probes[0] == 0.125  # half of a quarter of the lease


async def test_of_several_calls_at_once_an_error_is_raised_after_all_have_ended() -> None:
    ended: list[int] = []

    async def work(number: int) -> int:
        await asyncio.sleep(0)
        ended.append(number)
        if number == 1:
            raise StoreUnavailable("gone")
        return number

    client = AsyncDynamoDBClient(Service().target, ServerClock())
    assert await client.gather(work, [2, 3]) == [2, 3]
    with pytest.raises(StoreUnavailable, match="gone"):
        await client.gather(work, [1, 4])
    assert ended == [2, 3, 1, 4]


def test_a_closed_sync_client_ends_the_threads_of_its_batches() -> None:
    client = SyncDynamoDBClient(Service().target, ServerClock())

    async def work(number: int) -> int:
        return number

    assert run_sync(client.gather(work, [1, 2])) == [1, 2]
    pool = client._pool
    assert pool is not None
    run_sync(client.close())
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(int)
    assert run_sync(client.gather(work, [3, 4])) == [3, 4], "it opens others when it is used again"
    run_sync(client.close())


# -- what the requests carry


def values_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """The values of the expressions of a request, as Python values."""
    return {name[1:]: value for name, value in unwrap(parameters["ExpressionAttributeValues"]).items()}


def prepared(**replies: Any) -> tuple[Service, DynamoDBPort]:
    service = Service(**replies)
    ready = DynamoDBPort(service)
    run_sync(ready.now())
    service.calls.clear()
    return service, ready


def test_a_renewal_moves_the_end_of_the_lease_and_of_the_record() -> None:
    service, ready = prepared()
    assert run_sync(ready.run([Renewal("scope", "key", b"o" * 16, 7, 60, 500)])) == [True]
    values = values_of(service.made("update_item")[0])
    assert (values["until"], values["expires_at"]) == (NOW + 60, NOW + 560)
    assert values["expires"] == whole_seconds(NOW + 560)
    assert len(service.calls) == 1


def test_a_renewal_under_a_wrong_time_is_repeated_once() -> None:
    clock = FixedClock(lambda: NOW)

    def correct(parameters: Any) -> dict[str, Any]:
        clock.offset += 1_000_000
        return {}

    service = Service(clock, update_item=correct)
    assert run_sync(DynamoDBPort(service).run([Renewal("scope", "key", b"o" * 16, 7, 3_000_000, 500)])) == [True]
    assert len(service.made("update_item")) == 2


@pytest.mark.parametrize("doubt", [False, True])
def test_a_claim_is_leased_from_now_and_its_record_outlives_it(doubt: bool) -> None:
    service, ready = prepared(update_item={})
    (answer,) = run_sync(ready.run([Claim("scope", "key", b"o" * 16, 60, 500, doubt_on_lapse=doubt)]))
    assert isinstance(answer, Answer)
    assert (answer.kind, answer.token, answer.attempts, answer.generation) == ("claimed", NOW, 1, 0)
    (request,) = service.made("update_item")
    assert "#attempts < :max" not in request["ConditionExpression"]
    values = values_of(request)
    assert (values["until"], values["expires_at"]) == (NOW + 60, NOW + 560)
    assert values["expires"] == (253_402_300_799 if doubt else whole_seconds(NOW + 560))
    assert values["rank"] == (NOW + 60 if doubt else NOW)
    assert values["bucket"].startswith("claimed?/" if doubt else "claimed/")


def test_a_claim_answers_with_what_the_record_was_before() -> None:
    old = item("key", state="claimed", lease_until=1, owner=b"x" * 16, attempts=4, generation=2, error=b"e")
    _, ready = prepared(update_item={"Attributes": old})
    (answer,) = run_sync(ready.run([Claim("scope", "key", b"o" * 16, 60, 500, max_attempts=9)]))
    assert isinstance(answer, Answer)
    assert (answer.attempts, answer.generation, answer.error, answer.lapsed) == (5, 2, b"e", True)


@pytest.mark.parametrize(
    ("state", "refund", "kept"),
    [
        ("done", False, {"expires_at"}),
        ("free", True, {"expires_at", "attempts", "rank"}),
        ("in_doubt", False, {"rank"}),
    ],
)
def test_a_settlement_sets_what_its_state_needs(state: Any, refund: bool, kept: set[str]) -> None:
    service, ready = prepared()
    op = Settlement("scope", "key", b"o" * 16, 7, state, 500, refund=refund)
    assert run_sync(ready.run([op])) == [True]
    (request,) = service.made("update_item")
    assignments, _, removed = request["UpdateExpression"].partition(" REMOVE ")
    assert {name for name in ("expires_at", "attempts", "rank") if f"#{name} =" in assignments} == kept
    assert ("#error" in removed) is not refund
    assert {"#lease_until", "#keep", "#since", "#was"} <= set(removed.split(", "))
    values = values_of(request)
    if "expires_at" in kept:
        assert (values["expires_at"], values["expires"]) == (NOW + 500, whole_seconds(NOW + 500))
    if "rank" in kept:
        assert values["bucket"].startswith(f"{state}/")


def test_a_settlement_whose_reply_was_lost_is_recognised_by_owner_and_token() -> None:
    op = Settlement("scope", "key", b"o" * 16, 7, "done", 500)
    mine = {"owner": b"o" * 16, "token": 7}
    for stored, applied in (
        (mine, True),
        ({**mine, "token": 8}, False),
        ({**mine, "owner": b"x" * 16}, False),
        ({**mine, "state": "failed"}, False),
        ({**mine, "expires_at": NOW}, False),
    ):
        _, ready = prepared(update_item=ConditionFailed(item("key", **stored)))
        assert run_sync(ready.run([op])) == [applied]
    _, ready = prepared(update_item=ConditionFailed(None))
    assert run_sync(ready.run([op])) == [False]


def test_a_sorted_list_shows_the_newest_first_page_by_page() -> None:
    items = [item("a", changed_at=5), item("b", changed_at=9), item("gone", expires_at=NOW), item("c", changed_at=7)]
    _, ready = prepared(scan={"Items": items})
    page = run_sync(ready.list(Query(newest_first=True, limit=2)))
    assert ([each.key for each in page.records], page.partial) == (["b", "c"], False)
    page = run_sync(ready.list(Query(newest_first=True, limit=2, cursor=page.cursor)))
    assert ([each.key for each in page.records], page.cursor) == (["a"], None)
    page = run_sync(ready.list(Query(newest_first=True, limit=3)))
    assert (len(page.records), page.cursor) == (3, None)


def test_a_sorted_list_of_a_large_table_is_partial() -> None:
    more = {"id": {"B": digest("scope", "k")}}
    service, ready = prepared(scan={"Items": [item("a")], "LastEvaluatedKey": more})
    page = run_sync(ready.list(Query(newest_first=True, limit=2)))
    assert page.partial
    assert len(service.made("scan")) == port.MAX_SORTED_SCANS == 20
    assert service.made("scan")[1]["ExclusiveStartKey"] == more


def test_a_filtered_scan_asks_for_what_the_query_wants() -> None:
    service, ready = prepared(scan={"Items": []})
    run_sync(ready.list(Query(state="done", scope="s", key_contains="k", limit=2)))
    run_sync(ready.list(Query(limit=2)))
    filtered, unfiltered = service.made("scan")
    assert filtered["FilterExpression"] == (
        "attribute_exists(#version) AND #state = :state AND #scope = :scope AND contains(#key, :key_contains)"
    )
    assert values_of(filtered) == {"state": "done", "scope": "s", "key_contains": "k"}
    assert unfiltered["FilterExpression"] == "attribute_exists(#version)"


# -- lists from the index


def indexed(key: str, rank: int) -> dict[str, Any]:
    return {"id": {"B": digest("scope", key)}, "rank": {"N": str(rank)}, "bucket": {"S": "failed/0"}}


def test_a_list_merges_its_shards_and_goes_on_in_each_where_it_stopped() -> None:
    shards = {"failed/0": [indexed("a", 9), indexed("b", 5)], "failed/1": [indexed("c", 7)]}
    starts: list[tuple[str, Any]] = []

    def query(parameters: dict[str, Any]) -> dict[str, Any]:
        shard = values_of(parameters)["bucket"]
        start = parameters.get("ExclusiveStartKey")
        starts.append((shard, start))
        assert parameters["ScanIndexForward"] is False, "newest first"
        rows = shards.get(shard, [])
        if start is not None:
            rows = [row for row in rows if int(row["rank"]["N"]) < int(start["rank"]["N"])]
        return {"Items": rows[: parameters["Limit"]], "LastEvaluatedKey": rows[-1] if len(rows) > 2 else None}

    service = Service(query=query)
    first, cursor = run_sync(index.list_identities(service, Query(limit=2), "failed"))
    assert first == [digest("scope", "a"), digest("scope", "c")]
    assert all(start is None for _, start in starts)
    starts.clear()
    rest, cursor = run_sync(index.list_identities(service, Query(limit=2, cursor=cursor), "failed"))
    assert (rest, cursor) == ([digest("scope", "b")], None)
    assert [(shard, start["rank"]) for shard, start in starts] == [("failed/0", {"N": "9"})], "others were at their end"


def test_a_sweep_moves_lapsed_claims_to_in_doubt_and_dates_itself_when_none_is_left() -> None:
    lapsed = digest("scope", "a")
    shard = f"claimed?/{lapsed[0] % 8}"

    def query(parameters: dict[str, Any]) -> dict[str, Any]:
        assert values_of(parameters)["until"] == NOW
        return {"Items": [indexed("a", 5)] if values_of(parameters)["bucket"] == shard else []}

    service, ready = prepared(query=query)
    swept = run_sync(ready.sweep(1))
    assert (swept.deleted, swept.lapsed, swept.more) == (0, 1, False)
    moved, dated = service.made("update_item")
    assert values_of(moved)["bucket"] == f"in_doubt/{lapsed[0] % 8}"
    assert dated["Key"] == {"id": {"B": META_ID}}
    service._replies["query"] = lambda parameters: {"Items": [indexed("a", 5), indexed("b", 6)][: parameters["Limit"]]}
    service.calls.clear()
    assert run_sync(ready.sweep(1)).more
    assert len(service.made("update_item")) == 1, "it is not finished"
    service._replies["update_item"] = ConditionFailed(None)
    assert run_sync(ready.sweep(1)).lapsed == 0
