"""The SQLite store: the contract, sync and async, and what only a file does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from effectonce.backends.sqlite.connection import SQLiteConnection
from effectonce.backends.sqlite.store import SQLitePort, SQLiteStoreBackend
from effectonce.contracts import Port
from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    InvalidKey,
    InvalidOption,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
)
from effectonce.record import Answer, Batchable, Claim, Page, Query, Renewal, Reply, Settlement, State
from effectonce.testing.clock import ManualClock
from effectonce.testing.suites import store_suite
from effectonce.values.urls import Address
from tests.backends.exact_times import ExactTimes, TimedPort

SECOND = 1_000_000
HOUR = 3600 * SECOND

TestContract = store_suite()


class TestExactTimes(ExactTimes):
    @pytest.fixture
    def timed(self, tmp_path: Path) -> Iterator[TimedPort]:
        clock = ManualClock()
        port = SQLiteStoreBackend(Address(f"sqlite:///{tmp_path}/timed.db"), clock=clock).sync_port()
        yield TimedPort(port, clock)
        run_sync(port.close())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "eo.db"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backend(path: Path, clock: ManualClock) -> SQLiteStoreBackend:
    return SQLiteStoreBackend(Address(f"sqlite:///{path}"), clock=clock)


@pytest.fixture
def port(backend: SQLiteStoreBackend) -> Iterator[SQLitePort]:
    port = backend.sync_port()
    assert isinstance(port, SQLitePort)
    yield port
    run_sync(port.close())


@pytest.fixture
def other(path: Path, port: SQLitePort) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection to the same file."""
    run_sync(port.check())
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    yield other
    other.close()


def claim(key: str = "k", *, lease: int = 30 * SECOND, retention: int = HOUR, doubt: bool = False) -> Claim:
    return Claim("s", key, os.urandom(16), lease, retention, doubt_on_lapse=doubt)


def ask(port: Port, *batch: Batchable) -> list[Reply]:
    return list(run_sync(port.run(batch)))


def take(port: Port, op: Claim) -> Answer:
    [answer] = ask(port, op)
    assert isinstance(answer, Answer)
    assert answer.kind == "claimed"
    return answer


def finish(port: Port, op: Claim, answer: Answer, *, retention: int = HOUR) -> None:
    settlement = Settlement(op.scope, op.key, op.owner, answer.token, "done", retention, b"1")
    assert ask(port, settlement) == [True]


def keys(found: sqlite3.Connection) -> list[str]:
    return [key for (key,) in found.execute("SELECT key FROM effectonce_records ORDER BY key")]


class TestAddresses:
    @pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
    def test_no_file_is_refused_and_points_to_memory(self, url: str) -> None:
        with pytest.raises(InvalidOption, match="memory://"):
            SQLiteStoreBackend(Address(url))

    def test_two_slashes_are_refused_with_the_right_form(self) -> None:
        with pytest.raises(InvalidOption, match=r"sqlite:///shop\.db"):
            SQLiteStoreBackend(Address("sqlite://shop.db"))

    @pytest.mark.parametrize(
        "option",
        ["synchronous=OFF", "synchronous=1", "timeout=soon", "timeout=0", "prefix=", "prefix=a-b", "mode=ro"],
    )
    def test_bad_options_are_refused(self, option: str) -> None:
        with pytest.raises(InvalidOption, match=option.partition("=")[0]):
            SQLiteStoreBackend(Address(f"sqlite:///x.db?{option}"))

    @pytest.mark.parametrize("prefix", ['x"; DROP TABLE y; --', "x y", "1x", "é", "x" * 42, "x\n", "x;"])
    def test_f61_a_prefix_that_is_no_name_is_refused(self, prefix: str) -> None:
        from urllib.parse import quote

        with pytest.raises(InvalidOption, match="prefix"):
            SQLiteStoreBackend(Address(f"sqlite:///x.db?prefix={quote(prefix)}"))

    @pytest.mark.parametrize("prefix", ["sqlite", "SQLite", "sqlite_", "Sqlite_eo"])
    def test_a_prefix_that_sqlite_keeps_for_itself_is_refused(self, prefix: str) -> None:
        with pytest.raises(InvalidOption, match="another prefix"):
            SQLiteStoreBackend(Address(f"sqlite:///x.db?prefix={prefix}"))

    def test_a_prefix_that_only_looks_like_sqlites_is_fine(self, path: Path) -> None:
        port = SQLiteStoreBackend(Address(f"sqlite:///{path}?prefix=sqlite3")).sync_port()
        take(port, claim())
        run_sync(port.close())

    def test_a_relative_path_is_fixed_when_the_backend_is_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        port = SQLiteStoreBackend(Address("sqlite:///here.db")).sync_port()
        monkeypatch.chdir("/")
        run_sync(port.check())
        run_sync(port.close())
        assert (tmp_path / "here.db").exists()

    def test_nothing_is_opened_before_first_use(self, backend: SQLiteStoreBackend, path: Path) -> None:
        backend.sync_port()
        backend.async_port()
        assert not path.exists()

    @pytest.mark.parametrize(("level", "number"), [("FULL", 2), ("normal", 1), ("EXTRA", 3)])
    def test_synchronous_reaches_the_connection(self, path: Path, level: str, number: int) -> None:
        opened = SQLiteStoreBackend(Address(f"sqlite:///{path}?synchronous={level}")).file.open()
        assert opened.execute("PRAGMA synchronous").fetchone() == (number,)
        assert opened.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert opened.execute("PRAGMA busy_timeout").fetchone() == (0,)  # we wait, with the clock read anew
        opened.close()

    def test_two_prefixes_share_a_file_and_nothing_else(self, path: Path) -> None:
        one, two = (SQLiteStoreBackend(Address(f"sqlite:///{path}?prefix={p}")).sync_port() for p in ("one", "two"))
        take(one, claim())
        take(two, claim())
        run_sync(one.close())
        run_sync(two.close())

    def test_an_old_sqlite_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
        with pytest.raises(ConfigurationError, match=r"needs 3\.35"):
            SQLiteStoreBackend(Address("sqlite:///x.db"))


SETTLEMENT = dict.fromkeys(
    ["scope", "key", "owner", "token", "state", "result", "error", "refund", "note", "now", "expires_at"], 1
)


class TestSchema:
    def test_another_version_is_refused(self, port: SQLitePort, other: sqlite3.Connection) -> None:
        run_sync(port.close())
        other.execute("UPDATE effectonce_meta SET value = 2 WHERE name = 'schema'")
        with pytest.raises(SchemaMismatch, match="upgrade effectonce"):
            take(port, claim())

    def test_many_may_create_it_at_once(self, backend: SQLiteStoreBackend) -> None:
        failures: list[BaseException] = []
        barrier = threading.Barrier(8)

        def main() -> None:
            port = backend.sync_port()
            barrier.wait(10)
            try:
                run_sync(port.migrate())
                run_sync(port.migrate())
            except BaseException as error:
                failures.append(error)
            run_sync(port.close())

        threads = [threading.Thread(target=main) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert failures == []

    def test_its_script_creates_it_for_those_who_migrate_by_hand(self, backend: SQLiteStoreBackend, path: Path) -> None:
        by_hand = sqlite3.connect(path)
        by_hand.executescript(backend.schema_sql())
        by_hand.close()
        port = backend.sync_port()
        take(port, claim())
        run_sync(port.close())

    def test_tables_that_are_dropped_are_missed_and_made_again(
        self, port: SQLitePort, other: sqlite3.Connection
    ) -> None:
        take(port, claim())
        other.execute("DROP TABLE effectonce_records")
        other.execute("DROP TABLE effectonce_meta")
        with pytest.raises(SchemaMissing, match="effectonce migrate --store sqlite:///"):
            take(port, claim())
        take(port, claim())

    @pytest.mark.parametrize(
        ("query", "values", "index"),
        [
            ("edge_attention", ("in_doubt", 1, "", "", 1), "effectonce_attention (state=? AND (changed_at,scope,key)<"),
            (
                "page_attention",
                ("in_doubt", 1, "", "", 1, "", "", None, None, "", 1, 1),
                "effectonce_attention (state=? AND (changed_at,scope,key)>(?,?,?) AND (changed_at,scope,key)<(?,?,?))",
            ),
            ("count_attention", ("failed", 1, 1), "effectonce_attention"),
            ("oldest_in_doubt", (), "effectonce_attention"),
            (
                "edge_others",
                ("s", "", b"", b"", 1),
                "COVERING INDEX sqlite_autoindex_effectonce_records_1 ((scope,key)>",
            ),
            ("page_others", ("s", "", "s", b"", None, None, 1, 1), "(scope,key)>(?,?) AND (scope,key)<(?,?)"),
            ("count_recent", (1, "done", 1, 1), "INTEGER PRIMARY KEY (rowid>?)"),
            ("due", (1, 1), "INTEGER PRIMARY KEY (rowid<?)"),
            ("early", (1, 1), "effectonce_early (expires_at<?)"),
            ("lapsed", (1, 1), "effectonce_leases (lease_until<?)"),
            ("doubt", (1, 1), "INTEGER PRIMARY KEY (rowid=?)"),
            ("settle", SETTLEMENT, "scope=? AND key=?"),
            ("note", SETTLEMENT, "scope=? AND key=?"),
            ("edge_unfinished", ("", "", "z", "z", 9), "effectonce_unfinished"),
        ],
    )
    def test_nothing_scans_the_table_or_sorts(
        self,
        backend: SQLiteStoreBackend,
        other: sqlite3.Connection,
        query: str,
        values: tuple[object, ...] | dict[str, object],
        index: str,
    ) -> None:
        plan = [row[3] for row in other.execute(f"EXPLAIN QUERY PLAN {backend.statements[query]}", values)]
        assert any(index in step for step in plan), plan
        assert not any("TEMP B-TREE" in step or step == "SCAN effectonce_records" for step in plan), plan


class TestTheLock:
    def test_f36_a_lock_that_is_never_released_ends_in_store_unavailable(
        self, path: Path, other: sqlite3.Connection
    ) -> None:
        port = SQLiteStoreBackend(Address(f"sqlite:///{path}?timeout=50ms")).sync_port()
        other.execute("BEGIN IMMEDIATE")
        for batch in ([claim()], [claim("a"), claim("b")]):
            with pytest.raises(StoreUnavailable, match="locked by another connection"):
                ask(port, *batch)
        other.execute("ROLLBACK")
        take(port, claim())
        run_sync(port.close())

    @pytest.mark.parametrize("size", [1, 2])
    def test_a_lease_counts_from_when_the_lock_was_got(
        self,
        port: SQLitePort,
        other: sqlite3.Connection,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
        size: int,
    ) -> None:
        """With the time read before the wait, a lease of 1 s was over before it was written."""
        other.execute("BEGIN IMMEDIATE")

        def a_minute_passes_and_the_lock_is_free(_seconds: float) -> None:
            clock.advance("1m")
            other.execute("ROLLBACK")

        monkeypatch.setattr("effectonce.backends.sqlite.connection.time.sleep", a_minute_passes_and_the_lock_is_free)
        replies = ask(port, *(claim(f"k{n}", lease=SECOND) for n in range(size)))
        record = run_sync(port.get("s", "k0"))
        assert len(replies) == size
        assert record is not None
        assert record.lease_until == clock.now() + SECOND

    def test_duplicates_of_what_is_finished_write_nothing(self, port: SQLitePort, path: Path) -> None:
        for op in (claim("k"), claim("m")):
            finish(port, op, take(port, op))
        log = path.with_name("eo.db-wal")
        before = log.stat().st_size, log.stat().st_mtime_ns
        for _ in range(20):
            [answer] = ask(port, claim())
            assert isinstance(answer, Answer)
            assert answer.kind == "done"
        assert {a.kind for a in ask(port, claim("k"), claim("m")) if isinstance(a, Answer)} == {"done"}
        assert (log.stat().st_size, log.stat().st_mtime_ns) == before

    async def test_f16_a_call_cancelled_under_way_leaves_the_port_usable(
        self, backend: SQLiteStoreBackend, other: sqlite3.Connection
    ) -> None:
        port = backend.async_port()
        await port.check()
        other.execute("BEGIN IMMEDIATE")
        op = claim()
        waiting = asyncio.ensure_future(port.run((op,)))
        behind = asyncio.ensure_future(port.run((claim("never"),)))
        await asyncio.sleep(0.01)  # until it is on its thread; the test holds without, in another order
        waiting.cancel()
        behind.cancel()
        assert [type(end) for end in await asyncio.gather(waiting, behind, return_exceptions=True)] == [
            asyncio.CancelledError
        ] * 2
        other.execute("ROLLBACK")
        [answer] = await port.run((op,))
        assert isinstance(answer, Answer)
        assert (answer.kind, answer.attempts) == ("claimed", 1)
        assert await port.get("s", "never") is None
        await port.close()

    def test_ports_opened_and_closed_again_and_again_do_not_add_up(self, backend: SQLiteStoreBackend) -> None:
        """SQLite keeps the descriptor of a closed connection while another in the process has the file open (closing
        it would drop the other's locks) and uses it for the next."""
        if sys.platform != "linux":
            pytest.skip("needs /proc")
        held = backend.sync_port()
        run_sync(held.check())

        def use() -> int:
            ports = [backend.sync_port() for _ in range(4)]
            for port in ports:
                run_sync(port.check())
            for port in ports:
                run_sync(port.close())
            return len(os.listdir("/proc/self/fd"))

        first = use()
        assert [use() for _ in range(5)] == [first] * 5
        run_sync(held.close())
        assert len(os.listdir("/proc/self/fd")) <= first - 4


class Interruption(BaseException):
    """As Ctrl-C."""


class TestInterruptions:
    @pytest.mark.parametrize("what", ["a batch", "a batch, and again in what follows", "a migration"])
    def test_f16_wherever_it_is_interrupted_no_transaction_is_left_open(
        self, path: Path, other: sqlite3.Connection, what: str
    ) -> None:
        """What is answered afterwards would never be committed, and everybody else locked out."""
        inside = what.endswith("follows")

        def attempt(at: int) -> bool:
            """Interrupt it at its ``at``-th line; whether there was one."""
            port = SQLiteStoreBackend(Address(f"sqlite:///{path}")).sync_port()
            assert isinstance(port, SQLitePort)
            cursor_of(port)
            file, left, traced = SQLiteConnection.transaction.__code__.co_filename, [at], sys.gettrace()

            def trace(frame: FrameType, event: str, _: object) -> Any:
                if frame.f_code.co_filename != file:
                    return None
                if event == "line":
                    left[0] -= 1
                    if left[0] == 0:
                        raise Interruption
                return trace

            def work(cursor: sqlite3.Cursor) -> None:
                cursor.execute("UPDATE effectonce_meta SET value = value")
                if inside:
                    sys.settrace(trace)
                    sys._getframe(1).f_trace = trace
                    raise Interruption

            if not inside:
                sys.settrace(trace)
            try:
                with contextlib.suppress(Interruption):
                    if what == "a migration":
                        run_sync(port.migrate())
                    else:
                        run_sync(port.connection.transaction(work))
            finally:
                sys.settrace(traced)
            assert take(port, claim(f"{what} {at}")).kind == "claimed"
            assert f"{what} {at}" in keys(other)
            run_sync(port.close())
            return left[0] <= 0

        tried = 1
        while attempt(tried):
            tried += 1
        assert tried > 4


class TestBrokenFiles:
    def test_a_missing_folder(self, tmp_path: Path) -> None:
        port = SQLiteStoreBackend(Address(f"sqlite:///{tmp_path}/no/such/eo.db")).sync_port()
        with pytest.raises(ConfigurationError, match=r"folder .*/no/such exists"):
            run_sync(port.check())

    def test_a_file_that_is_no_database(self, path: Path, port: SQLitePort) -> None:
        path.write_bytes(b"Dear diary, " * 1000)
        with pytest.raises(ConfigurationError, match="not a SQLite database"):
            run_sync(port.check())

    def test_a_file_that_may_only_be_read(self, port: SQLitePort) -> None:
        run_sync(port.check())
        cursor_of(port).execute("PRAGMA query_only = 1")
        with pytest.raises(ConfigurationError, match="write access"):
            take(port, claim())

    def test_a_full_disk_loses_nothing_that_was_answered(self, port: SQLitePort) -> None:
        first = claim("first")
        finish(port, first, take(port, first))
        (pages,) = cursor_of(port).execute("PRAGMA page_count").fetchone()
        cursor_of(port).execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreUnavailable, match="full"):
            ask(port, *(claim(f"k{n:03}" * 50) for n in range(100)))
        [answer] = ask(port, claim("first"))
        assert isinstance(answer, Answer)
        assert answer.kind == "done"

    def test_a_damaged_file(self, path: Path, port: SQLitePort) -> None:
        for n in range(50):
            take(port, claim(f"k{n}"))
        run_sync(port.close())
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (size - 4096))
        with pytest.raises(StoreUnavailable, match="damaged"):
            run_sync(port.get("s", "k1"))


def cursor_of(port: SQLitePort) -> sqlite3.Cursor:
    return run_sync(port.connection.execute(lambda cursor: cursor))


class TestRows:
    def test_f60_a_poisoned_row_harms_itself_only(self, port: SQLitePort, other: sqlite3.Connection) -> None:
        take(port, claim("a"))
        other.execute("UPDATE effectonce_records SET state = 'maybe'")
        poisoned, fine = ask(port, claim("a"), claim("b"))
        assert isinstance(poisoned, CorruptRecord)
        assert isinstance(fine, Answer)
        assert fine.kind == "claimed"

    def test_f70_a_key_that_cannot_be_stored_harms_itself_only(self, port: SQLitePort) -> None:
        fine, bad, late = ask(port, claim("a"), claim("\ud800"), claim("z"))
        assert isinstance(bad, InvalidKey)
        assert [a.kind for a in (fine, late) if isinstance(a, Answer)] == ["claimed", "claimed"]

    def test_two_rows_that_want_one_place_both_get_one(self, port: SQLitePort) -> None:
        port._sequence = itertools.chain([7, 7, 8], itertools.count(9))  # type: ignore[assignment]
        take(port, claim("a"))
        assert take(port, claim("b")).attempts == 1

    def test_f26_the_sweep_takes_what_has_expired_and_nothing_else(
        self, port: SQLitePort, clock: ManualClock, other: sqlite3.Connection
    ) -> None:
        short, plain, again, doubt, long = (claim(key, doubt=key == "doubt") for key in KINDS)
        finish(port, short, take(port, short), retention=60 * SECOND)
        finish(port, plain, take(port, plain))
        take(port, again)
        take(port, doubt)
        finish(port, long, take(port, long), retention=10 * HOUR)

        clock.advance("2m")  # past the short retention, and the leases
        take(port, claim("again"))
        assert run_sync(port.sweep(100)).deleted == 1
        assert keys(other) == ["again", "doubt", "long", "plain"]
        clock.advance("59m")
        assert run_sync(port.sweep(100)).deleted == 1
        assert keys(other) == ["again", "doubt", "long"]
        clock.advance("9m")
        assert run_sync(port.sweep(100)).deleted == 1
        assert keys(other) == ["doubt", "long"]
        clock.advance("30d")
        assert run_sync(port.sweep(100)).deleted == 1
        assert keys(other) == ["doubt"]

    def test_what_was_looked_at_too_early_is_put_off_not_looked_at_for_ever(
        self, port: SQLitePort, clock: ManualClock, other: sqlite3.Connection
    ) -> None:
        for n in range(20):
            take(port, claim(f"k{n:02}", doubt=True))
        clock.advance("2h")
        run_sync(port.sweep(100))
        (due,) = other.execute("SELECT min(due) FROM effectonce_records").fetchone()
        assert due >> 20 > clock.now() // 1000

    def test_a_page_looks_at_a_bounded_number_of_rows(
        self, port: SQLitePort, clock: ManualClock, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("effectonce.backends.sqlite.record_reader.MAX_PAGE_VISITS", 10)
        take(port, claim("the one"))
        for n in range(35):
            op = claim(f"k{n:02}")
            finish(port, op, take(port, op))
        for scope in (None, "s"):
            sizes = [len(page.records) for page in pages(port, Query(state="claimed", scope=scope, limit=5))]
            assert sizes == [0, 0, 0, 1]

    def test_a_page_of_what_failed_looks_at_a_bounded_number_of_rows(
        self, port: SQLitePort, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("effectonce.backends.sqlite.record_reader.MAX_PAGE_VISITS", 10)
        for scope, count in (("s", 1), ("other", 10)):  # the newest first: that of `s` is the eleventh
            for n in range(count):
                op = replace(claim(f"k{n:02}"), scope=scope)
                ask(port, Settlement(scope, op.key, op.owner, take(port, op).token, "failed", HOUR, error=b"1"))
                clock.advance("1s")
        sizes = [len(page.records) for page in pages(port, Query(state="failed", scope="s", limit=5))]
        assert sizes == [0, 1]

    @pytest.mark.parametrize("query", [Query(limit=2), Query(state="claimed", limit=2), Query(scope="s", limit=2)])
    def test_f27_a_sweep_between_two_pages_hides_nothing(
        self, port: SQLitePort, clock: ManualClock, query: Query
    ) -> None:
        for key in "abcdef":
            op = claim(key, retention=10 * SECOND)
            token = take(port, op).token
            assert ask(port, Renewal("s", key, op.owner, token, HOUR, HOUR)) == [True]
            clock.advance("1s")
        clock.advance("1m")  # the sweep would look at them now, and none has expired

        def sweep() -> None:
            run_sync(port.sweep(500))
            clock.advance("5m")

        found = [record.key for page in pages(port, query, between=sweep) for record in page.records]
        assert sorted(found) == list("abcdef")

    def test_f27_nor_where_one_sweep_changed_many_at_once(self, port: SQLitePort, clock: ManualClock) -> None:
        for key in "abcdef":
            take(port, claim(key, doubt=True))
        clock.advance("1m")
        assert run_sync(port.sweep(500)).lapsed == 6
        clock.advance("2h")

        def sweep() -> None:
            run_sync(port.sweep(500))
            clock.advance("2d")

        listed = pages(port, Query(state="in_doubt", limit=2), between=sweep)
        assert [record.key for page in listed for record in page.records] == list("fedcba")

    @pytest.mark.parametrize("state", [None, "in_doubt"])
    def test_cursors_bear_any_scope_and_key(self, port: SQLitePort, clock: ManualClock, state: State | None) -> None:
        names = ["a", ":", "1:2:", "\x00", "a\x00", "é", "🔑", '"', "\uffff", "a\n"]
        for scope, key in itertools.product(names, names):
            take(port, Claim(scope, key, os.urandom(16), SECOND, HOUR, doubt_on_lapse=True))
        if state == "in_doubt":
            clock.advance("1m")
            run_sync(port.sweep(500))
        found = [(r.scope, r.key) for page in pages(port, Query(state=state, limit=7)) for r in page.records]
        assert sorted(found) == sorted(itertools.product(names, names))
        within = [r.key for page in pages(port, Query(state=state, scope="a", limit=3)) for r in page.records]
        assert sorted(within) == sorted(names)

    @pytest.mark.parametrize(
        "cursor", ["x", "", "0:1:", "0:one:s", "1:1:sk", "0:9:sk", "0:1:s\ud800", "-1:1:sk", "0:1:tk"]
    )
    def test_a_cursor_of_another_list_is_refused(self, port: SQLitePort, cursor: str) -> None:
        with pytest.raises(InvalidOption, match="cursor"):
            run_sync(port.list(Query(scope="s", cursor=cursor)))

    def test_a_sweep_has_more_only_where_another_would_do_something(self, port: SQLitePort, clock: ManualClock) -> None:
        for n in range(3):
            take(port, claim(f"d{n}", doubt=True))
            op = claim(f"e{n}")  # expires earlier than the sweep would look at it
            finish(port, op, take(port, op), retention=60 * SECOND)
            take(port, claim(f"k{n}", retention=60 * SECOND))
            clock.advance("1us")
        clock.advance("2h")
        swept = [run_sync(port.sweep(3)) for _ in range(3)]
        assert [(each.deleted, each.lapsed, each.more) for each in swept] == [
            (3, 3, True),
            (3, 0, False),
            (0, 0, False),
        ]

    def test_a_sweep_ends_where_all_of_this_millisecond_live_on(self, port: SQLitePort, clock: ManualClock) -> None:
        for n in range(5):
            op = claim(f"k{n}", lease=1, retention=1)
            token = take(port, op).token
            assert ask(port, Renewal("s", op.key, op.owner, token, 400, 400)) == [True]
        for _ in range(5):
            if not run_sync(port.sweep(1)).more:
                return
        pytest.fail("it would go on for ever")

    def test_f27_stats_say_where_they_did_not_look_at_all_rows(
        self, port: SQLitePort, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for n in range(10):
            take(port, claim(f"k{n}"))
        monkeypatch.setattr("effectonce.backends.sqlite.record_reader.MAX_STATS_VISITS", 10)
        stats = run_sync(port.stats())
        assert (stats.counts["claimed"], stats.approximate) == (10, ())
        monkeypatch.setattr("effectonce.backends.sqlite.record_reader.MAX_STATS_VISITS", 9)
        stats = run_sync(port.stats())
        assert (stats.counts["claimed"], stats.approximate) == (9, ("claimed", "done"))
        # "Five or more" is true, however many there are.
        monkeypatch.setattr("effectonce.backends.sqlite.record_reader.MAX_COUNT", 5)
        assert run_sync(port.stats()).approximate == ("done",)


def pages(port: Port, query: Query, *, between: Callable[[], None] = lambda: None) -> list[Page]:
    found = [run_sync(port.list(query))]
    while found[-1].cursor is not None:
        between()
        found.append(run_sync(port.list(replace(query, cursor=found[-1].cursor))))
    return found


KINDS = ("short", "plain", "again", "doubt", "long")

HAMMER = """
import json, os, sys
from effectonce.core.run_sync import run_sync
from effectonce.record import Claim, Settlement
from effectonce.backends.sqlite.connection import SQLiteConnection
from effectonce.backends.sqlite.store import SQLiteStoreBackend
from effectonce.values.urls import Address

port = SQLiteStoreBackend(Address(sys.argv[1])).sync_port()
run_sync(port.check())
for line in sys.stdin:  # one generation per line, so that the processes meet
    granted = []
    names = [f"k{n:03}" for n in range(120)]
    for start in range(0, 120, 6):
        size = 1 if start % 12 else 6  # alone and in batches
        for at in range(start, start + 6, size):
            claims = [Claim("s", key, os.urandom(16), 60_000_000, 3600_000_000) for key in names[at:at + size]]
            ends = []
            for claim, answer in zip(claims, run_sync(port.run(claims))):
                if answer.kind == "claimed":
                    granted.append((claim.key, answer.generation))
                    ends.append(Settlement("s", claim.key, claim.owner, answer.token, "done", 3600_000_000))
            if ends:
                assert all(reply is True for reply in run_sync(port.run(ends)))
    print(json.dumps(granted), flush=True)
"""

VICTIM = """
import os, sys
from effectonce.core.run_sync import run_sync
from effectonce.record import Claim, Settlement
from effectonce.backends.sqlite.connection import SQLiteConnection
from effectonce.backends.sqlite.store import SQLiteStoreBackend
from effectonce.values.urls import Address

port = SQLiteStoreBackend(Address(sys.argv[1])).sync_port()
for batch in range(100_000):
    claims = [Claim("s", f"{batch:06}-{n:03}", os.urandom(16), 60_000_000, 3600_000_000) for n in range(100)]
    answers = run_sync(port.run(claims))
    print(batch, flush=True)
    run_sync(port.run([
        Settlement("s", c.key, c.owner, a.token, "done", 3600_000_000, b"x" * 200) for c, a in zip(claims, answers)
    ]))
"""


def start(script: str, path: Path) -> subprocess.Popen[str]:
    """With a long timeout: on a busy machine the holder of the file's lock may not get a processor for seconds."""
    return subprocess.Popen(
        [sys.executable, "-c", script, f"sqlite:///{path}?timeout=60"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class TestProcesses:
    def test_f14_four_processes_grant_each_key_once_per_generation(self, path: Path) -> None:
        processes = [start(HAMMER, path) for _ in range(4)]
        port = SQLiteStoreBackend(Address(f"sqlite:///{path}?timeout=60")).sync_port()
        grants: Counter[tuple[str, int]] = Counter()
        try:
            for _ in range(3):
                for process in processes:
                    assert process.stdin is not None
                    process.stdin.write("go\n")
                    process.stdin.flush()
                for process in processes:
                    assert process.stdout is not None
                    grants.update((key, generation) for key, generation in json.loads(process.stdout.readline()))
                for n in range(120):
                    assert run_sync(port.forget("s", f"k{n:03}", HOUR))
        finally:
            for process in processes:
                process.communicate(timeout=30)
            run_sync(port.close())
        assert grants == {(f"k{n:03}", generation): 1 for n in range(120) for generation in range(3)}

    @pytest.mark.chaos
    @pytest.mark.parametrize("seen", [3, 11])
    def test_a_process_killed_in_mid_batch_leaves_whole_batches(self, path: Path, seen: int) -> None:
        victim = start(VICTIM, path)
        assert victim.stdout is not None
        reported = [int(victim.stdout.readline()) for _ in range(seen)]
        victim.send_signal(signal.SIGKILL)
        rest, _ = victim.communicate(timeout=30)
        reported += [int(line) for line in rest.split()]

        found = sqlite3.connect(path)
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        sizes = Counter(key.partition("-")[0] for key in keys(found))
        states = found.execute(
            "SELECT substr(key, 1, 6), count(DISTINCT state) FROM effectonce_records GROUP BY 1"
        ).fetchall()
        found.close()
        assert set(sizes.values()) == {100}
        assert {count for _, count in states} == {1}
        assert {f"{batch:06}" for batch in reported} <= set(sizes)
        # And it goes on: what was claimed by the dead is found in progress, the rest is done.
        port = SQLiteStoreBackend(Address(f"sqlite:///{path}")).sync_port()
        [answer] = ask(port, claim(f"{reported[-1]:06}-000"))
        assert isinstance(answer, Answer)
        assert answer.kind in ("in_progress", "done")
        run_sync(port.close())


# -- what it says about itself


def test_its_figures_are_about_what_is_overdue(backend: SQLiteStoreBackend, clock: ManualClock) -> None:
    port, began = backend.sync_port(), clock.now()
    for number in range(3):
        ask(port, claim(f"k{number}"))
        clock.advance_micros(SECOND)
    figures = run_sync(port.figures(clock.now()))
    assert (figures.overdue, figures.oldest_overdue) == (0, None)
    assert figures.settings == {"journal_mode": "wal", "synchronous": "2"}
    clock.advance_micros(2 * HOUR)
    figures = run_sync(port.figures(clock.now()))
    record = run_sync(port.list(Query()))
    assert (figures.overdue, record.records) == (3, [])
    assert figures.oldest_overdue == began + 30 * SECOND + HOUR
    assert figures.cap == 100_000
    run_sync(port.close())


def test_it_says_what_it_can(backend: SQLiteStoreBackend) -> None:
    capabilities = backend.capabilities
    assert (capabilities.name, capabilities.connections) == ("sqlite", "one"), "it has one writer"
    assert capabilities.notes
    assert capabilities.ordered
    assert capabilities.durable
    assert capabilities.shared
    assert not capabilities.notifies
