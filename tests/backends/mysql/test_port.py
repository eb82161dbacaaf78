"""What the store and the outbox make of the server's rows, with a stand-in for the connection."""

from __future__ import annotations

from typing import Any

import pytest

from effectonce.backends.mysql.connection import MySQLServer
from effectonce.backends.mysql.outbox import MySQLOutbox
from effectonce.backends.mysql.store import _LISTING, MySQLPort
from effectonce.backends.mysql.tables import MySQLTables
from effectonce.errors import ConfigurationError, SchemaMismatch, SchemaMissing, StoreUnavailable, UnsafeStore
from effectonce.record import Query, SweepResult
from effectonce.values.cursors import write_cursor
from effectonce.values.urls import Address

ADDRESS = Address("mysql://h/db")
VERSION = [[[1, 1]]]


class Connection:
    """Answers packets, one after another, with the rows of their statements."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.packets: list[str] = []
        self.connect_count = 1

    async def connect(self) -> MySQLServer:
        return MySQLServer("MySQL", (8, 4, 0), 16 << 20, True)

    async def execute(self, sql: str) -> Any:
        self.packets.append(sql)
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer


def port_on(connection: Any) -> MySQLPort:
    return MySQLPort(MySQLTables(connection, ADDRESS, "eo"), "eo", True)


# -- the tables


async def test_tables_are_verified_once_on_each_connection() -> None:
    connection: Any = Connection(VERSION, [], [], VERSION, [])
    tables = MySQLTables(connection, ADDRESS, "eo")
    await tables.execute("one")
    await tables.execute("two")
    connection.connect_count = 2
    await tables.execute("three")
    assert [packet for packet in connection.packets if "meta" not in packet] == ["one", "two", "three"]
    assert len(connection.packets) == 5


@pytest.mark.parametrize(
    ("answer", "kind"),
    [([[[None, None]]], SchemaMissing), ([[["0", "0"]]], SchemaMismatch), ([[[2, 2]]], SchemaMismatch)],
)
async def test_tables_of_another_version_are_refused(answer: Any, kind: type[Exception]) -> None:
    connection: Any = Connection(answer)
    with pytest.raises(kind):
        await MySQLTables(connection, ADDRESS, "eo").verify()


async def test_tables_of_an_outbox_are_probed_for_their_columns() -> None:
    connection: Any = Connection(VERSION, [])
    await MySQLTables(connection, ADDRESS, "eo", "SELECT probe").verify()
    assert connection.packets[-1] == "SELECT probe"


# -- the check

SAFE = {
    "innodb_flush_log_at_trx_commit": "1",
    "log_bin": "ON",
    "binlog_format": "ROW",
    "max_allowed_packet": "1048576",
    "read_only": "OFF",
}


async def check(*, engine: str = "InnoDB", sysdate_moves: int = 1, **changes: str) -> None:
    variables = [(name.upper(), value) for name, value in {**SAFE, **changes}.items()]
    connection = Connection(VERSION, [], [[("eo_records", engine)], variables, [(7, sysdate_moves)]])
    await port_on(connection).check()
    assert len(connection.packets) == 3  # also one that needs the rights to write


@pytest.mark.parametrize(
    "changes",
    [{}, {"read_only": "0"}, {"binlog_format": "MIXED"}, {"log_bin": "OFF", "binlog_format": "STATEMENT"}],
)
async def test_a_server_that_keeps_what_it_confirms_passes(changes: dict[str, str]) -> None:
    await check(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "MyISAM"}, "not InnoDB"),
        ({"innodb_flush_log_at_trx_commit": "2"}, "a crash loses"),
        ({"binlog_format": "statement"}, "binlog_format is STATEMENT"),
        ({"log_bin": "1", "binlog_format": "STATEMENT"}, "binlog_format is STATEMENT"),
        ({"max_allowed_packet": "1048575"}, "max_allowed_packet"),
        ({"sysdate_moves": 0}, "sysdate-is-now"),
    ],
)
async def test_a_server_that_may_lose_records_names_the_setting(changes: Any, said: str) -> None:
    with pytest.raises(UnsafeStore, match=said):
        await check(**changes)


@pytest.mark.parametrize("value", ["ON", "1"])
async def test_a_replica_is_unavailable(value: str) -> None:
    with pytest.raises(StoreUnavailable, match="the primary"):
        await check(read_only=value)


async def test_the_check_of_an_outbox_needs_the_rights_that_a_relay_needs() -> None:
    connection: Any = Connection(VERSION, VERSION, [], ConfigurationError("denied"))
    outbox = MySQLOutbox(MySQLTables(connection, ADDRESS, "eo", "SELECT probe"), "eo_outbox", "eo")
    connection.answers = [VERSION, [], VERSION, [], ConfigurationError("denied")]
    with pytest.raises(ConfigurationError, match="denied"):
        await outbox.check()


# -- operators


async def test_a_record_that_is_absent_is_none() -> None:
    assert await port_on(Connection(VERSION, [[]])).get("s", "k") is None


async def test_a_list_stops_after_a_few_rounds_and_goes_on_from_there() -> None:
    entries = [(b"%032d" % n, 1000 - n, 0) for n in range(500)]
    connection = Connection(VERSION, *([[entries]] * 20))
    page = await port_on(connection).list(Query(state="failed", limit=5))
    assert page.records == []
    assert page.cursor == write_cursor(_LISTING, (1000 - 499, b"%032d" % 499))
    assert len(connection.packets) == 21


async def test_the_last_page_of_a_list_has_no_cursor() -> None:
    connection = Connection(VERSION, [[(b"a" * 32, 5, 1)]], [[]])
    page = await port_on(connection).list(Query(state="failed", limit=1))
    assert page.cursor is None


@pytest.mark.parametrize(
    ("expired", "held", "result"),
    [
        (0, 0, SweepResult(0, 0, False)),
        (3, 3, SweepResult(3, 0, False)),
        (4, 3, SweepResult(3, 0, True)),
        (4, 0, SweepResult(0, 0, False)),  # others hold them all: the same again would find the same
    ],
)
async def test_a_sweep_has_more_where_another_would_do_something(expired: int, held: int, result: SweepResult) -> None:
    rows = [(b"%032d" % n,) for n in range(expired)]
    sweep = [[rows], [[], rows[:held]], []] if rows else [[[]]]
    connection = Connection(VERSION, *sweep, [[]], [])
    assert await port_on(connection).sweep(3) == result


async def test_a_sweep_locks_a_few_records_at_a_time() -> None:
    rows = [(b"%032d" % n,) for n in range(150)]
    connection = Connection(VERSION, [rows], [[], rows[:100]], [], [[], rows[100:]], [], [[]], [])
    assert await port_on(connection).sweep(150) == SweepResult(150, 0, False)
    assert [packet.count("COMMIT") for packet in connection.packets[2:6]] == [0, 1, 0, 1]


async def test_figures_go_without_what_this_user_may_not_see() -> None:
    sizes = [("eo_records", 7)]
    hidden = Connection(VERSION, [[[3, 99]], sizes], ConfigurationError("PROCESS"))
    figures = await port_on(hidden).figures(1)
    assert (figures.overdue, figures.oldest_overdue, figures.rows) == (3, 99, {"eo_records": (7, 0)})
    assert (figures.transaction_age_s, figures.transaction) == (0.0, "")
    seen = Connection(VERSION, [[[3, 99]], sizes], [[(1.5, 42, "LOCK WAIT")]])
    figures = await port_on(seen).figures(1)
    assert (figures.transaction_age_s, figures.transaction) == (1.5, "thread 42, lock wait")
