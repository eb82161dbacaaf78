"""The modelled database: transactions that commit or do not, rows that are locked, connections that break.

`effectonce.sessions` knows its connections, so that the inbox and the outbox run on them as they are: their statements
are looked up in the inbox's and the outbox's own files, and every statement is a request of its
process.

A statement that touches only its own transaction commutes with everything. An insert of a key that another open
transaction has inserted waits for the end of that, as a unique index makes it, and so does a statement on a record that
another has completed. An insert of many keys waits for all of them, and takes them in one step.
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
from effectonce.sessions import register_session
from effectonce.sessions.base_session import BaseDriverSession, NamedRows

from .simulation import Process, Simulation
from .transport import JOIN, Transport

TABLE: Final = "effectonce_inbox"
_SAVEPOINT: Final = re.compile(r"(SAVEPOINT|RELEASE SAVEPOINT|ROLLBACK TO SAVEPOINT) (\w+)")
_NAMES: Final = {text: name for name, text in getattr(inbox_table("sqlite", TABLE), "_sql").items()}  # noqa: B009

Write = tuple[str, Any]


class SimulatedTransaction:
    """The writes of one transaction. It holds the keys that it has inserted, and the records that it has completed,
    until it ends."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.savepoints: list[tuple[str, int]] = []
        self.open = True

    def inserts(self, key: str) -> bool:
        return self.open and ("inbox", key) in self.writes


class SimulatedDatabase:
    """The committed state: the keys of the inbox, its counted starts, effects, and the rows of the outbox."""

    def __init__(self) -> None:
        self.inbox: dict[str, bytes | None] = {}
        self.marks: dict[str, int] = {}  # by row: the number of the insert that has made it
        self.inserts: dict[str, int] = {}  # by key: how many inserts there were, committed or not
        self.starts: dict[str, int] = {}  # by key: those without an outcome
        self.reported: dict[str, int] = {}  # by key: those before the last outcome
        self.effects: list[str] = []
        self.on_send: Callable[[int, NewOutboxRow], None] | None = None
        self.on_settle: Callable[[Settlement], None] | None = None
        self.transactions: list[SimulatedTransaction] = []
        self.connections: list[SimulatedConnection] = []
        self.sequence = 0

    def drop_connections_of(self, process: Process) -> None:
        """Cut the connections of ``process``, which was killed."""
        for connection in self.connections:
            if connection.process is process:
                connection.cut()

    def begin(self) -> SimulatedTransaction:
        self.transactions = self._open_transactions()
        transaction = SimulatedTransaction()
        self.transactions.append(transaction)
        return transaction

    def _open_transactions(self) -> list[SimulatedTransaction]:
        return [transaction for transaction in self.transactions if transaction.open]

    def holder(self, key: str, asking: SimulatedTransaction) -> SimulatedTransaction | None:
        """Return the open transaction that has inserted ``key``, where that is another than ``asking``."""
        return next((other for other in self.transactions if other is not asking and other.inserts(key)), None)

    def is_completing(self, key: str, asking: SimulatedTransaction | None = None) -> bool:
        """Whether an open transaction, another than the one that is ``asking``, has completed the record ``key``."""
        others = [transaction for transaction in self._open_transactions() if transaction is not asking]
        return any(kind == "join" and value.key == key for other in others for kind, value in other.writes)

    def commit(self, transaction: SimulatedTransaction) -> None:
        if not transaction.open:
            return
        transaction.open = False
        for kind, value in transaction.writes:
            if kind == "inbox":
                self.inbox.setdefault(value)
            elif kind == "mark":
                self.marks[value[0]] = value[1]
            elif kind == "result":
                self.inbox[value[0]] = value[1]
            elif kind == "start":
                self.starts[value] = self.starts.get(value, 0) + 1
            elif kind == "refund":
                self.starts[value] = max(0, self.starts.get(value, 0) - 1)
            elif kind == "report":
                key, uncounted = value
                self.reported[key] = self.reported.get(key, 0) + self.starts.pop(key, 0) + uncounted
            elif kind == "unstart":
                self.starts.pop(value, None)
                self.reported.pop(value, None)
            elif kind == "forget":
                self.inbox.pop(value, None)
            elif kind == "effect":
                self.effects.append(value)
            elif kind == "send" and self.on_send is not None:
                self.on_send(*value)
            elif kind == "join" and self.on_settle is not None:
                self.on_settle(value)

    def state_key(self) -> object:
        return (
            tuple(sorted(self.inbox)),
            tuple(sorted(self.marks.items())),
            tuple(sorted(self.starts.items())),
            tuple(sorted(self.reported.items())),
            tuple(sorted(self.effects)),
            tuple(tuple(map(_describe_write, transaction.writes)) for transaction in self._open_transactions()),
        )


def _describe_write(write: Write) -> str:
    kind, value = write
    return repr((kind, value.key) if kind == "join" else write)  # its owner is the holder of the record


class SimulatedConnection:
    """One connection of one process. ``of``: the number of the delivery that it is used for. ``at_once``: its
    statements are not a part of the schedule."""

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
        """Run a statement that no other connection can notice before the commit."""
        return await self.ask(name, apply, _LocalTransport(self))

    async def effect(self, key: str) -> None:
        """Write the handler's effect."""
        await self.run("effect", lambda: self.write("effect", key))

    def write(self, kind: str, value: Any) -> None:
        assert self.transaction is not None
        self.transaction.writes.append((kind, value))

    def cut(self) -> None:
        """Break the connection, which rolls its open transaction back."""
        self.alive = False
        if self.transaction is not None:
            self.transaction.open = False


class _StatementTransport(Transport):
    """Carries a statement: when it is lost, so is its connection."""

    lingers = False

    def __init__(self, connection: SimulatedConnection) -> None:
        self.connection = connection

    def error_when_lost(self, retry: bool) -> Exception:
        self.connection.cut()
        return ConnectionLost("the connection broke")


class _LocalTransport(_StatementTransport):
    local = True


class _InsertTransport(_StatementTransport):
    def __init__(self, connection: SimulatedConnection, *keys: str) -> None:
        super().__init__(connection)
        self._keys = keys

    def is_blocked(self) -> bool:
        transaction, database = self.connection.transaction, self.connection.database
        return transaction is not None and any(database.holder(key, transaction) is not None for key in self._keys)


class _JoinTransport(_StatementTransport):
    def __init__(self, connection: SimulatedConnection, op: Settlement) -> None:
        super().__init__(connection)
        self._op = op

    def is_blocked(self) -> bool:
        return self.connection.database.is_completing(self._op.key, self.connection.transaction)


class _CommitTransport(_StatementTransport):
    """Carries a COMMIT. Given up, it may still be executed (F30, a lost COMMIT reply): until then its transaction is
    open, and holds its rows."""

    lingers = True

    def give_up(self) -> None:
        self.connection.alive, self.connection.transaction = False, None


class NoSavepoint(Exception):
    """The database's error about a missing savepoint."""


class SimulatedSession(BaseDriverSession):
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

    async def _send(self, sql: str, params: Sequence[Any]) -> NamedRows:
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
        """Make, release or roll back to a savepoint. False: there is none of that name."""
        transaction = self.connection.transaction
        if word == "SAVEPOINT":
            transaction.savepoints.append((name, len(transaction.writes)))
            return True
        while transaction.savepoints:
            newest, position = transaction.savepoints.pop()
            if newest == name:
                if word.startswith("ROLLBACK"):
                    del transaction.writes[position:]
                    transaction.savepoints.append((newest, position))
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
        return [(connection.database.starts.get(key, 0) + 1, connection.database.reported.get(key, 0), None)]

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


def _report(connection: SimulatedConnection, key: str, params: Sequence[Any]) -> list[Any]:
    connection.write("report", (key, params[3]))
    return []


_STATEMENTS: Final = {
    "find": _find,
    "find_many": _find_many,
    "store": _store,
    "ours": _ours,
    "forget_many": _forget_many,
    "uncount": _uncount,
    "refund": _refund,
    "report": _report,
}

register_session(SimulatedConnection, SimulatedSession)
