"""The inbox on every kind of connection, sync and async, against real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import effectonce as eo
from effectonce.values.awaitables import maybe_await
from tests.inbox.conftest import Shop, place_of
from tests.inbox.kinds import KINDS, Kind, run, run_sync

pytestmark = pytest.mark.quick_on("sqlite3", "psycopg", "psycopg, async", "asyncpg", "pymysql", "aiomysql")


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def only(fits: Callable[[Kind], Any]) -> pytest.MarkDecorator:
    """A test of some kinds."""
    return pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if fits(kind)])


@pytest.fixture
async def shop(request: pytest.FixtureRequest, kind: Kind, unique_name: str) -> AsyncIterator[Shop]:
    opened = Shop(place_of(request, kind.dialect), unique_name, kind)
    yield opened
    await opened.stack.aclose()


def paid(amount: int = 4200, key: str = "order-1") -> eo.Message[dict[str, int]]:
    return eo.Message(type="order.paid", data={"amount": amount}, key=key)


async def test_the_first_is_first_and_its_duplicate_is_not(shop: Shop) -> None:
    caller = await shop.caller()
    assert await maybe_await(shop.inbox.first(caller.conn, paid())) is True
    await caller.run(shop.effect("paid"))
    assert await maybe_await(shop.inbox.first(caller.conn, paid())) is False
    assert shop.rows == shop.effects == []  # not before the commit
    await caller.commit()
    assert (shop.rows, shop.effects) == (["order-1"], ["paid"])
    await caller.begin()
    assert await maybe_await(shop.inbox.first(caller.conn, paid())) is False


async def test_a_rollback_takes_the_record_with_the_effect(shop: Shop) -> None:
    """F33: nothing stays behind, so the next delivery runs."""
    caller = await shop.caller()
    assert await maybe_await(shop.inbox.first(caller.conn, paid()))
    await caller.run(shop.effect("paid"))
    await caller.roll_back()
    assert shop.rows == shop.effects == []
    await caller.begin()
    assert await maybe_await(shop.inbox.first(caller.conn, paid()))
    await caller.run(shop.effect("paid"))
    await caller.commit()
    assert (shop.rows, shop.effects) == (["order-1"], ["paid"])


async def test_a_duplicate_leaves_the_transaction_usable(shop: Shop) -> None:
    """F40."""
    caller = await shop.caller()
    assert await maybe_await(shop.inbox.first(caller.conn, paid()))
    await caller.commit()
    await caller.begin()
    assert not await maybe_await(shop.inbox.first(caller.conn, paid()))
    assert await maybe_await(shop.inbox.first(caller.conn, paid(key="order-2")))
    await caller.run(shop.effect("second"))
    await caller.commit()
    assert (shop.rows, shop.effects) == (["order-1", "order-2"], ["second"])


async def test_another_payload_under_the_same_key_is_refused_and_the_transaction_goes_on(shop: Shop) -> None:
    """F21."""
    caller = await shop.caller()
    assert await maybe_await(shop.inbox.first(caller.conn, paid(4200)))
    with pytest.raises(eo.PayloadMismatch, match="order-1"):
        await maybe_await(shop.inbox.first(caller.conn, paid(1)))
    with pytest.raises(eo.PayloadMismatch, match="order-1"):
        await maybe_await(shop.inbox.call(caller.conn, paid(1), runs(caller, "twice", shop)))
    await caller.run(shop.effect("paid"))
    await caller.commit()
    assert (shop.rows, shop.effects) == (["order-1"], ["paid"])


async def test_keys_are_compared_as_bytes(shop: Shop) -> None:
    """Neither case, nor blanks, nor composition, nor what a driver would escape makes two keys one, or one key two."""
    caller = await shop.caller()
    odd = [
        "a",
        "A",
        "a ",
        " a",
        "é",
        "e\N{COMBINING ACUTE ACCENT}",
        "ß",
        "ss",
        "\\",
        "'",
        '"',
        '","',
        "%s",
        "$1",
        "{}",
        "🐘",
    ]
    odd += ["NULL", "null", "x" * 1024, "%", "?", ":a", "a\nb", "`"]
    for key in odd:
        assert await maybe_await(shop.inbox.first(caller.conn, key)), key
    for key in odd:
        assert not await maybe_await(shop.inbox.first(caller.conn, key)), key
    assert await maybe_await(shop.inbox.first_many(caller.conn, odd)) == [False] * len(odd)
    more = [f"more {key}"[:1024] for key in odd]
    assert await maybe_await(shop.inbox.first_many(caller.conn, more)) == [True] * len(odd)
    await caller.commit()
    assert set(shop.rows) == {*odd, *more}


@pytest.mark.parametrize("keys", [("a\\b", "ab"), ('a"b', "ab"), ('","', "x"), ("a\\", "b")])
async def test_many_keys_are_compared_as_bytes_whichever_character_needs_escaping(
    shop: Shop, keys: tuple[str, str]
) -> None:
    caller = await shop.caller()
    assert await maybe_await(shop.inbox.first_many(caller.conn, keys)) == [True, True]
    await caller.commit()
    assert set(shop.rows) == set(keys)


async def test_many_are_answered_in_their_order(shop: Shop) -> None:
    caller = await shop.caller()
    assert await maybe_await(shop.inbox.first(caller.conn, paid(key="b")))
    messages = [paid(key=key) for key in "cbaacb"]
    assert await maybe_await(shop.inbox.first_many(caller.conn, messages)) == [True, False, True, False, False, False]
    assert await maybe_await(shop.inbox.first_many(caller.conn, [])) == []
    assert await maybe_await(shop.inbox.first_many(caller.conn, ["plain", ("tenant", 7)])) == [True, True]
    await caller.commit()
    assert shop.rows == ["a", "b", "c", "plain", "tenant:7"]


async def test_many_with_one_mismatch_record_none(shop: Shop) -> None:
    """Else a caller who goes on and commits would have the others recorded, and not done."""
    caller = await shop.caller()
    assert await maybe_await(shop.inbox.first(caller.conn, paid(key="b")))
    for wrong in ([paid(key="a"), paid(1, key="b"), paid(key="c")], [paid(key="a"), paid(1, key="a")]):
        with pytest.raises(eo.PayloadMismatch):
            await maybe_await(shop.inbox.first_many(caller.conn, wrong))
    await caller.commit()
    assert shop.rows == ["b"]


def runs(caller: Any, name: str, shop: Shop, result: Any = None, error: BaseException | None = None) -> Any:
    """A handler, sync or async as the kind, which has the effect ``name``."""

    def sync(conn: Any, message: Any) -> Any:
        assert conn is caller.conn
        caller._run(shop.effect(name))
        if error is not None:
            raise error
        return result

    async def asynchronous(conn: Any, message: Any) -> Any:
        assert conn is caller.conn
        await caller.run(shop.effect(name))
        if error is not None:
            raise error
        return result

    assert shop.kind is not None
    return asynchronous if shop.kind.is_async else sync


async def test_a_call_replays_what_the_first_gave(shop: Shop) -> None:
    """Of falsy results, too."""
    caller = await shop.caller()
    results = [None, 0, "", [], False, {"receipt": ["ä", 1.5, None]}]
    for at, result in enumerate(results):
        outcome = await maybe_await(
            shop.inbox.call(caller.conn, paid(key=f"k{at}"), runs(caller, "paid", shop, result))
        )
        assert (outcome.value, outcome.replayed, outcome.key, outcome.scope) == (result, False, f"k{at}", shop.scope)
    await caller.commit()
    await caller.begin()
    for at, result in enumerate(results):
        outcome = await maybe_await(
            shop.inbox.call(caller.conn, paid(key=f"k{at}"), runs(caller, "again", shop, "other"))
        )
        assert (outcome.value, outcome.replayed) == (result, True)
    await caller.commit()
    assert shop.effects == ["paid"] * len(results)


async def test_a_call_that_raises_is_undone_even_if_the_caller_goes_on_and_commits(shop: Shop) -> None:
    """The message is not lost: its next delivery runs."""
    caller = await shop.caller()
    await caller.run(shop.effect("before"))
    for error in (RuntimeError("no stock"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as raised:
            await maybe_await(shop.inbox.call(caller.conn, paid(), runs(caller, "half", shop, error=error)))
        assert raised.value is error
    await caller.run(shop.effect("after"))
    await caller.commit()
    assert (shop.rows, shop.effects) == ([], ["after", "before"])
    await caller.begin()
    assert not (await maybe_await(shop.inbox.call(caller.conn, paid(), runs(caller, "paid", shop)))).replayed
    await caller.commit()
    assert (shop.rows, shop.effects) == (["order-1"], ["after", "before", "paid"])


async def test_a_call_is_not_committed_by_itself(shop: Shop) -> None:
    """Also where it is the first that is done on the connection: a savepoint alone would be the transaction."""
    caller = await shop.caller()
    await maybe_await(shop.inbox.call(caller.conn, paid(), runs(caller, "paid", shop, 1)))
    assert shop.rows == shop.effects == []
    await caller.roll_back()
    assert shop.rows == shop.effects == []


async def test_calls_may_be_nested(shop: Shop) -> None:
    caller = await shop.caller()
    inner = eo.Inbox(scope=f"{shop.scope}-inner", table=shop.place.table)
    fails = runs(caller, "half", shop, error=ValueError("no"))

    def sync(conn: Any, message: Any) -> str:
        caller._run(shop.effect("outer"))
        with pytest.raises(ValueError, match="no"):
            inner.call(conn, message, fails)
        return inner.call(conn, message, runs(caller, "inner", shop, "deep")).value  # type: ignore[no-any-return]

    async def asynchronous(conn: Any, message: Any) -> str:
        await caller.run(shop.effect("outer"))
        with pytest.raises(ValueError, match="no"):
            await inner.call(conn, message, fails)
        return (await inner.call(conn, message, runs(caller, "inner", shop, "deep"))).value  # type: ignore[no-any-return]

    assert shop.kind is not None
    outcome = await maybe_await(shop.inbox.call(caller.conn, paid(), asynchronous if shop.kind.is_async else sync))
    assert outcome.value == "deep"
    await caller.commit()
    assert shop.effects == ["inner", "outer"]


async def test_a_sync_handler_on_an_async_connection_is_refused_and_nothing_is_recorded(shop: Shop) -> None:
    """F72: what is not awaited would be recorded, and never done."""
    caller = await shop.caller()

    async def asynchronous(conn: Any, message: Any) -> None:
        raise AssertionError("it must not run")

    def plain(conn: Any, message: Any) -> None:
        pass

    def returns_an_awaitable(conn: Any, message: Any) -> Any:
        return asynchronous(conn, message)

    assert shop.kind is not None
    for wrong in [plain] if shop.kind.is_async else [asynchronous, returns_an_awaitable]:
        with pytest.raises(eo.SyncAsyncMismatch):
            await maybe_await(shop.inbox.call(caller.conn, paid(), wrong))
    await caller.commit()
    assert shop.rows == []


@only(lambda kind: kind.is_async)
async def test_an_answer_that_nobody_awaits_is_an_error(shop: Shop) -> None:
    """F71: it would always be true."""
    caller = await shop.caller()
    with pytest.raises(eo.NotAwaited, match=r"await inbox\.first"):
        bool(shop.inbox.first(caller.conn, paid()))
    await caller.commit()
    assert shop.rows == []


@only(lambda kind: kind.autocommit)
async def test_a_connection_that_commits_each_statement_is_refused(shop: Shop) -> None:
    assert shop.kind is not None
    assert shop.kind.autocommit is not None
    async with shop.kind.autocommit(shop.place) as caller:
        with pytest.raises(eo.NotInTransaction, match="begin a transaction"):
            await maybe_await(shop.inbox.first(caller.conn, paid()))
        with pytest.raises(eo.NotInTransaction):
            await maybe_await(shop.inbox.call(caller.conn, paid(), runs(caller, "paid", shop)))
        with pytest.raises(eo.NotInTransaction):
            await maybe_await(shop.inbox.first_many(caller.conn, [paid()]))
        with pytest.raises(eo.NotInTransaction):
            await maybe_await(
                shop.inbox.on_table("payments", column="idempotency_key").insert(caller.conn, "k", {"amount": 1})
            )
    assert shop.rows == shop.effects == []


@only(lambda kind: "ession" not in kind.name)  # which open again by themselves
async def test_a_closed_connection_says_so(shop: Shop) -> None:
    caller = await shop.caller()
    await caller.close()
    with pytest.raises(eo.StoreUnavailable, match="closed"):
        await maybe_await(shop.inbox.first(caller.conn, paid()))


async def test_without_its_table_it_says_how_to_create_it(shop: Shop) -> None:
    caller = await shop.caller()
    missing = eo.Inbox(scope=shop.scope, table="not_migrated")
    await caller.run(shop.effect("before"))
    with pytest.raises(eo.SchemaMissing, match="effectonce migrate --store URL, or run what schema_sql"):
        await maybe_await(missing.call(caller.conn, paid(), runs(caller, "paid", shop)))
    with pytest.raises(eo.SchemaMissing, match=r"not_migrated is missing.*inbox\.schema_sql"):
        await maybe_await(missing.check(caller.conn))
    if shop.place.dialect != "postgresql":  # which ends a transaction in which a statement has failed
        with pytest.raises(eo.SchemaMissing):
            await maybe_await(missing.first(caller.conn, paid()))
    await caller.commit()  # a call is inside of a savepoint, so nothing is lost there either
    assert shop.effects == ["before"]


async def test_what_is_wrong_with_a_message_is_said_before_the_first_statement(shop: Shop) -> None:
    caller = await shop.caller()
    await caller.run(shop.effect("before"))
    wrong = {
        None: eo.MissingKey,
        "": eo.MissingKey,
        1.5: eo.InvalidKey,
        "x" * 1025: eo.KeyTooLong,
        "a\0": eo.InvalidKey,
    }
    for key, error in wrong.items():
        with pytest.raises(error):
            await maybe_await(shop.inbox.first(caller.conn, key))
        with pytest.raises(error):
            await maybe_await(shop.inbox.first_many(caller.conn, ["fine", key]))
    with pytest.raises(eo.InvalidKey, match="cannot be fingerprinted"):
        await maybe_await(shop.inbox.first(caller.conn, eo.Message(data=object())))
    await caller.commit()
    assert (shop.rows, shop.effects) == ([], ["before"])


async def test_a_result_that_cannot_be_kept_makes_it_done_all_the_same(shop: Shop) -> None:
    """F18."""
    caller = await shop.caller()
    unstorable = object()
    outcome = await maybe_await(shop.inbox.call(caller.conn, paid(), runs(caller, "paid", shop, unstorable)))
    assert outcome.value is unstorable
    await caller.commit()
    await caller.begin()
    with pytest.raises(eo.ResultNotStored, match="ack this delivery"):
        await maybe_await(shop.inbox.call(caller.conn, paid(), runs(caller, "again", shop)))
    await caller.commit()
    assert shop.effects == ["paid"]


async def test_a_private_inbox_shows_neither_keys_nor_results(shop: Shop) -> None:
    """F62."""
    caller = await shop.caller()
    private = eo.Inbox(scope=shop.scope, table=shop.place.table, private="correct horse battery")
    outcome = await maybe_await(private.call(caller.conn, paid(key="alice"), runs(caller, "paid", shop, "card 4242")))
    assert (outcome.key, outcome.value) == ("alice", "card 4242")
    assert (
        await maybe_await(private.call(caller.conn, paid(key="alice"), runs(caller, "paid", shop)))
    ).value == "card 4242"
    with pytest.raises(eo.PayloadMismatch):
        await maybe_await(private.first(caller.conn, paid(1, key="alice")))
    await caller.commit()
    ((key, result),) = shop.place.query(
        f"SELECT {'`key`' if shop.place.dialect == 'mysql' else 'key'}, result FROM {shop.place.table} "
        f"WHERE scope = '{shop.scope}'"
    )
    assert "alice" not in key
    assert b"4242" not in bytes(result)


async def test_a_unique_key_of_ones_own_table_serves_as_well(shop: Shop) -> None:
    caller = await shop.caller()
    payments = shop.inbox.on_table("payments", column="idempotency_key")
    first = await maybe_await(payments.insert(caller.conn, shop.scope, {"amount": 4200}))
    assert first.was_inserted
    assert set(first.row) == {"id", "idempotency_key", "amount"}
    assert first.row["amount"] == 4200
    again = await maybe_await(payments.insert(caller.conn, shop.scope, {"amount": 1}))
    assert not again.was_inserted
    assert again.row == first.row
    await caller.commit()
    await caller.begin()
    again = await maybe_await(payments.insert(caller.conn, shop.scope, {"amount": 1}))
    assert (again.row, again.was_inserted) == (first.row, False)
    await caller.run(shop.effect("after"))
    await caller.commit()
    assert shop.place.query(f"SELECT amount FROM payments WHERE idempotency_key = '{shop.scope}'") == [(4200,)]
    assert shop.effects == ["after"]


async def test_another_unique_key_of_ones_own_table_raises_the_databases_error(shop: Shop) -> None:
    caller = await shop.caller()
    payments = shop.inbox.on_table("payments", column="idempotency_key")
    first = await maybe_await(payments.insert(caller.conn, shop.scope, {"amount": 4200}))
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        await maybe_await(payments.insert(caller.conn, f"{shop.scope}/2", {"id": first.row["id"], "amount": 1}))
    await caller.roll_back()


async def test_expired_rows_are_purged_and_no_others(shop: Shop) -> None:
    brief = eo.Inbox(scope=shop.scope, table=shop.place.table, retention=0.000001)
    caller = await shop.caller()
    for key in "abc":
        assert await maybe_await(brief.first(caller.conn, key))
    assert await maybe_await(shop.inbox.first(caller.conn, "kept"))
    await caller.commit()
    await asyncio.sleep(0.01)  # SQLite's clock counts milliseconds
    await caller.begin()
    assert not await maybe_await(brief.first(caller.conn, "a"))  # past its retention, and not purged: still a duplicate
    await caller.run(shop.effect("a"))
    purged = await maybe_await(shop.inbox.purge(caller.conn, limit=2))
    assert purged == 2
    while purged:
        purged = await maybe_await(shop.inbox.purge(caller.conn, limit=2))
    await caller.commit()
    assert shop.rows == ["kept"]


async def test_the_tables_can_be_made_on_the_connection_itself(shop: Shop) -> None:
    other = eo.Inbox(scope="any", table=f"{shop.scope}_inbox")
    caller = await shop.caller()
    await maybe_await(other.migrate(caller.conn))
    await maybe_await(other.migrate(caller.conn))
    await maybe_await(other.check(caller.conn))
    if shop.place.dialect != "mysql":  # where DDL ends the transaction
        assert await maybe_await(other.first(caller.conn, "k"))
    await caller.roll_back()
    with shop.place.connected() as run:
        if shop.place.dialect == "mysql":
            run(f"DROP TABLE {other.table_name}")
            run(f"DROP TABLE {other.table_name}_starts")


@only(lambda kind: kind.connect)
async def test_a_handler_owns_its_transaction(shop: Shop) -> None:
    """On whatever `connect` gives: pools, session makers, bare connections, awaitables."""
    assert shop.kind is not None
    fails = [True]
    async with shop.connect() as connect:
        if shop.kind.is_async:

            @shop.inbox.handler(connect=connect)
            async def handle(conn: Any, message: Any) -> int:
                await run(conn, shop.effect("paid"))
                if fails:
                    raise RuntimeError(fails.pop())
                return 7
        else:

            @shop.inbox.handler(connect=connect)  # type: ignore[no-redef]
            def handle(conn: Any, message: Any) -> int:
                run_sync(conn, shop.effect("paid"))
                if fails:
                    raise RuntimeError(fails.pop())
                return 7

        with pytest.raises(RuntimeError):
            await maybe_await(handle(paid()))
        assert shop.rows == shop.effects == []
        assert await maybe_await(handle(paid())) == 7
        assert (shop.rows, shop.effects) == (["order-1"], ["paid"])
        outcome = await maybe_await(handle.call(paid()))
        assert (outcome.value, outcome.replayed) == (7, True)
        with pytest.raises(eo.PayloadMismatch):
            await maybe_await(handle(paid(1)))
        assert shop.effects == ["paid"]
