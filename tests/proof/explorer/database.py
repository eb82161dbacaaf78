"""The modelled database: transactions that commit or do not, rows that are locked, connections that break.

A connection of it is one that `effectonce.sessions` knows, so that the inbox and the outbox run on it as
they are: what they send is looked up in the statements of their own files, and every statement is a request of its
process.
A statement that touches only its own transaction commutes with everything; an insert of a key that another open
transaction has inserted waits for the end of that, as a unique index makes it, and so does whatever touches a record
that another has completed. An insert of many keys waits for all of them, and takes them in one step.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from effectonce.contracts import ConnectionLost
from effectonce.inbox.table import inbox_table
from effectonce.outbox.outbox import NewOutboxRow
from effectonce.record import Settlement
from effectonce.sessions import register_adapter
from effectonce.sessions.base import DriverAdapter, NamedRows

from .simulation import Process, Simulation
from .transport import JOIN, Transport

TABLE: Final = "effectonce_inbox"
_SAVEPOINT: Final = re.compile(r"(SAVEPOINT|RELEASE SAVEPOINT|ROLLBACK TO SAVEPOINT) (\w+)")
_NAMES: Final = {text: name for name, text in getattr(inbox_table("sqlite", TABLE), "_sql").items()}  # noqa: B009

Write = tuple[str, Any]


class SimulatedTransaction:
    """What one transaction has done so far. It holds the keys that it has inserted, and the records that it has
    completed, until it ends."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.savepoints: list[tuple[str, int]] = []
        self.open = True

    def inserts(self, key: str) -> bool:
        return self.open and ("inbox", key) in self.writes


class SimulatedDatabase:
    """What is committed: the keys of the inbox, its counted starts, effects, and the rows of the outbox."""

    def __init__(self) -> None:
        self.inbox: dict[str, bytes | None] = {}
        self.marks: dict[str, int] = {}  # of each row, which insert has made it
        self.inserts: dict[str, int] = {}  # of each key, committed or not
        self.starts: dict[str, int] = {}
        self.effects: list[str] = []
        self.on_send: Callable[[int, NewOutboxRow], None] | None = None
        self.on_settle: Callable[[Settlement], None] | None = None
        self.transactions: list[SimulatedTransaction] = []
        self.connections: list[SimulatedConnection] = []
        self.sequence = 0

    def drop_connections_of(self, process: Process) -> None:
        """``process`` was killed, and its connections with it."""
        for connection in self.connections:
            if connection.process is process:
                connection.cut()

    def begin(self) -> SimulatedTransaction:
        self.transactions = [each for each in self.transactions if each.open]
        transaction = SimulatedTransaction()
        self.transactions.append(transaction)
        return transaction

    def holder(self, key: str, asking: SimulatedTransaction) -> SimulatedTransaction | None:
        """The open transaction that has inserted ``key``, where that is another."""
        return next((each for each in self.transactions if each is not asking and each.inserts(key)), None)

    def completing(self, key: str, asking: SimulatedTransaction | None = None) -> bool:
        """Whether an open transaction, another than the one that is ``asking``, has completed the record ``key``."""
        others = (each for each in self.transactions if each.open and each is not asking)
        return any(kind == "join" and what.key == key for each in others for kind, what in each.writes)

    def commit(self, transaction: SimulatedTransaction) -> None:
        if not transaction.open:
            return
        transaction.open = False
        for kind, what in transaction.writes:
            if kind == "inbox":
                self.inbox.setdefault(what)
            elif kind == "mark":
                self.marks[what[0]] = what[1]
            elif kind == "result":
                self.inbox[what[0]] = what[1]
            elif kind == "start":
                self.starts[what] = self.starts.get(what, 0) + 1
            elif kind == "refund":
                self.starts[what] = max(0, self.starts.get(what, 0) - 1)
            elif kind == "unstart":
                self.starts.pop(what, None)
            elif kind == "forget":
                self.inbox.pop(what, None)
            elif kind == "effect":
                self.effects.append(what)
            elif kind == "send" and self.on_send is not None:
                self.on_send(*what)
            elif kind == "join" and self.on_settle is not None:
                self.on_settle(what)

    def state_key(self) -> object:
        return (
            tuple(sorted(self.inbox)),
            tuple(sorted(self.marks.items())),
            tuple(sorted(self.starts.items())),
            tuple(sorted(self.effects)),
            tuple(tuple(map(_describe_write, each.writes)) for each in self.transactions if each.open),
        )


def _describe_write(write: Write) -> str:
    kind, what = write
    return repr((kind, what.key) if kind == "join" else write)  # its owner is the holder of the record


class SimulatedConnection:
    """One connection of one process. ``of``: the delivery that it is used for. ``at_once``: its statements are no
    part of the schedule."""

    def __init__(
        self, simulation: Simulation, process: Process, database: SimulatedDatabase, of: int, *, at_once: bool = False
    ) -> None:
        self.simulation = simulation
        self.process = process
        self.database = database
        self.of = of
        self._at_once = at_once
        self.transaction: SimulatedTransaction | None = None
        self.alive = True
        database.connections.append(self)

    async def ask(self, name: str, apply: Callable[[], Any], transport: Transport) -> Any:
        if not self.alive:
            raise ConnectionLost("this connection is gone")
        if self._at_once:
            return apply()
        try:
            return await self.simulation.ask(self.process, "sql", (name,), apply, of=self.of, transport=transport)
        except asyncio.CancelledError:
            self.process.forget_cancelled()
            raise

    async def run(self, name: str, apply: Callable[[], Any]) -> Any:
        """A statement that nobody else can notice before the commit."""
        return await self.ask(name, apply, _LocalTransport(self))

    async def effect(self, key: str) -> None:
        """The handler's own write."""
        await self.run("effect", lambda: self.write("effect", key))

    def write(self, kind: str, what: Any) -> None:
        assert self.transaction is not None
        self.transaction.writes.append((kind, what))

    def cut(self) -> None:
        """The connection is gone, and with it what it had not committed."""
        self.alive = False
        if self.transaction is not None:
            self.transaction.open = False


class _StatementTransport(Transport):
    """A statement: when it is lost, so is its connection."""

    lingers = False

    def __init__(self, connection: SimulatedConnection) -> None:
        self.connection = connection

    def broken(self, retry: bool) -> Exception:
        self.connection.cut()
        return ConnectionLost("the connection broke")


class _LocalTransport(_StatementTransport):
    local = True


class _InsertTransport(_StatementTransport):
    def __init__(self, connection: SimulatedConnection, *keys: str) -> None:
        super().__init__(connection)
        self._keys = keys

    def blocked(self) -> bool:
        transaction, database = self.connection.transaction, self.connection.database
        return transaction is not None and any(database.holder(key, transaction) is not None for key in self._keys)


class _JoinTransport(_StatementTransport):
    def __init__(self, connection: SimulatedConnection, op: Settlement) -> None:
        super().__init__(connection)
        self._op = op

    def blocked(self) -> bool:
        return self.connection.database.completing(self._op.key, self.connection.transaction)


class _CommitTransport(_StatementTransport):
    """Given up, it may still be executed (F30): until then its transaction is open, and holds its rows."""

    lingers = True

    def late(self) -> None:
        self.connection.alive, self.connection.transaction = False, None


class NoSavepoint(Exception):
    """What the database says of a savepoint that is not there."""


class SimulatedSession(DriverAdapter):
    """The connection as the inbox and the outbox see it."""

    __slots__ = ()

    dialect = "sqlite"
    is_async = True

    def require_transaction(self) -> None:
        assert self.connection.transaction is not None

    async def _in_transaction(self) -> bool:
        transaction = self.connection.transaction
        return transaction is not None and transaction.open

    async def _begin(self) -> None:
        connection: SimulatedConnection = self.connection

        def begin() -> None:
            connection.transaction = connection.database.begin()

        await connection.run("begin", begin)

    async def _commit(self) -> None:
        connection: SimulatedConnection = self.connection
        transaction = connection.transaction
        assert transaction is not None
        await connection.ask("commit", lambda: connection.database.commit(transaction), _CommitTransport(connection))
        connection.transaction = None

    async def roll_back(self) -> None:
        connection: SimulatedConnection = self.connection

        def undo() -> None:
            if connection.transaction is not None:
                connection.transaction.open = False
                connection.transaction = None

        await connection.run("rollback", undo)

    async def close(self) -> None:
        self.connection.cut()

    async def _send(self, sql: str, params: Sequence[Any], named: bool) -> NamedRows:
        connection: SimulatedConnection = self.connection
        savepoint = _SAVEPOINT.fullmatch(sql)
        if savepoint is not None:
            word, name = savepoint.groups()
            if not await connection.run(word.split()[0].lower(), lambda: self._savepoint(word, name)):
                raise NoSavepoint(f"no savepoint {name}")
            return (), ()
        if sql.startswith("INSERT INTO") and sql not in _NAMES:
            return (), await connection.run("send", lambda: self._write_outbox(params))
        if sql == JOIN:
            (op,) = params
            return (), await connection.ask("join", lambda: self._join(op), _JoinTransport(connection, op))
        if _NAMES[sql] == "settings":
            return (), [("wal", 2, TABLE)]  # of a database that keeps its promise
        name, key = _NAMES[sql], params[1]
        if name == "insert_many":
            keys = json.loads(key)
            return (), await connection.ask(name, lambda: self._insert_many(keys), _InsertTransport(connection, *keys))
        if name in ("insert", "count"):
            apply = (lambda: self._insert(key)) if name == "insert" else (lambda: self._count(key))
            return (), await connection.ask(name, apply, _InsertTransport(connection, key))
        return (), await connection.run(name, lambda: _STATEMENTS[name](connection, key, params))

    def _savepoint(self, word: str, name: str) -> bool:
        """Whether there is one of that name."""
        transaction = self.connection.transaction
        if word == "SAVEPOINT":
            transaction.savepoints.append((name, len(transaction.writes)))
            return True
        while transaction.savepoints:
            found, at = transaction.savepoints.pop()
            if found == name:
                if word.startswith("ROLLBACK"):
                    del transaction.writes[at:]
                    transaction.savepoints.append((found, at))
                return True
        return False

    def _insert(self, key: str) -> list[Any]:
        connection: SimulatedConnection = self.connection
        assert connection.transaction is not None
        if key in connection.database.inbox or connection.transaction.inserts(key):
            return []
        mark = connection.database.inserts[key] = connection.database.inserts.get(key, 0) + 1
        connection.write("inbox", key)
        connection.write("mark", (key, mark))
        return [(mark,)]

    def _insert_many(self, keys: list[str]) -> list[Any]:
        return [(key, *row) for key in keys for row in self._insert(key)]

    def _join(self, op: Settlement) -> list[Any]:
        connection: SimulatedConnection = self.connection
        row = connection.simulation.backend.scopes[op.scope].get(op.key)
        if row is None or (row.owner, row.token) != (op.owner, op.token) or row.state not in ("claimed", "in_doubt"):
            return []
        connection.write("join", op)
        return [(1,)]

    def _count(self, key: str) -> list[Any]:
        connection: SimulatedConnection = self.connection
        if key in connection.database.inbox:
            return []
        connection.write("start", key)
        return [(connection.database.starts.get(key, 0) + 1,)]

    def _write_outbox(self, params: Sequence[Any]) -> list[Any]:
        connection: SimulatedConnection = self.connection
        width = len(NewOutboxRow._fields)
        for start in range(0, len(params), width):
            connection.database.sequence += 1  # the numbers are given out before the commit (F41)
            connection.write("send", (connection.database.sequence, NewOutboxRow(*params[start : start + width])))
        return []


def _find(connection: SimulatedConnection, key: str, params: Sequence[Any]) -> list[Any]:
    return [(None, connection.database.inbox[key])] if key in connection.database.inbox else []


def _find_many(connection: SimulatedConnection, keys: str, params: Sequence[Any]) -> list[Any]:
    return [(key, None) for key in json.loads(keys) if key in connection.database.inbox]


def _store(connection: SimulatedConnection, key: str, params: Sequence[Any]) -> list[Any]:
    connection.write("result", (key, params[2]))
    return []


def _ours(connection: SimulatedConnection, key: str, params: Sequence[Any]) -> list[Any]:
    database = connection.database
    return [(1,)] if key in database.inbox and database.marks[key] == params[2] else []


def _forget_many(connection: SimulatedConnection, keys: str, params: Sequence[Any]) -> list[Any]:
    for key in json.loads(keys):
        connection.write("forget", key)
    return []


def _uncount(connection: SimulatedConnection, key: str, params: Sequence[Any]) -> list[Any]:
    connection.write("unstart", key)
    return []


def _refund(connection: SimulatedConnection, key: str, params: Sequence[Any]) -> list[Any]:
    connection.write("refund", key)
    return []


_STATEMENTS: Final = {
    "find": _find,
    "find_many": _find_many,
    "store": _store,
    "ours": _ours,
    "forget_many": _forget_many,
    "uncount": _uncount,
    "refund": _refund,
}

register_adapter(SimulatedConnection, SimulatedSession)
