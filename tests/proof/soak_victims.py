"""What a process of a soak does with the messages it is given, per mode; any of it may be its last.

The effect is written where no store of ours can lose or double it: mode L appends a line to a file, in one ``write``;
mode T inserts a row in the transaction of the message; modes K and I charge at a provider over HTTP. The control arms
are two handlers as they are often written, which must be seen to double and to lose.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import httpx  # noqa: F401  (before the fork, as all that a life needs)
import psycopg  # noqa: F401
import pymysql  # noqa: F401
import redis  # noqa: F401
from msgspec import Struct

import effectonce as eo
import effectonce.sessions.mysql
import effectonce.sessions.psycopg
import effectonce.sessions.sqlite
from tests.inbox.conftest import prepare
from tests.inbox.kinds import Place, pymysql_conn, run_sync
from tests.inbox.test_inputs import opened

Mode = Literal["L", "T", "K", "I", "act first", "mark first"]
CONTROLS: tuple[Mode, ...] = ("act first", "mark first")
Said = Literal["done", "later", "doubt"]

SCOPE = "soak"
LEASE = 0.4  # seconds: short, since a killed owner's messages wait for its end


class Order(Struct, frozen=True):
    """One soak, as it is told to the process that runs it."""

    mode: Mode
    url: str
    folder: str
    seed: str
    messages: int
    kills: int
    seconds: float = 3600.0  # after so long, messages that were never delivered are withdrawn
    workers: int = 4
    provider: str = ""

    @property
    def ledger(self) -> str:
        return f"{self.folder}/ledger"

    @property
    def place(self) -> Place:
        scheme = self.url.partition(":")[0]
        return Place("mysql" if scheme == "mariadb" else scheme, self.url, "soak_inbox")  # type: ignore[arg-type]


def connect(order: Order) -> eo.Store:
    return eo.connect(order.url, sweep_every=None)


def set_up(order: Order) -> None:
    """Once, before the first life."""
    if order.mode in CONTROLS:
        os.mkdir(f"{order.folder}/marks")
        return
    if order.mode == "T":
        place = order.place
        if place.dialect == "sqlite":
            with place.connected() as run:
                run("PRAGMA journal_mode = WAL")
        prepare(place)
        return
    with connect(order) as store:
        store.migrate()
        store.check()


class Refused(Exception):
    """The provider's answer where it is no success; `providers.classify` reads its status."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status} {body}")
        self.status_code = status
        self.body = body


def deliverer(order: Order) -> Callable[[str], Said]:
    """What takes one message, by its key. Raises what a queue would deliver again."""
    makers = {"L": _leased, "T": _transactional, "K": _called, "I": _called}
    return makers.get(order.mode, _naive)(order)


def _naive(order: Order) -> Callable[[str], Said]:
    """Look whether it is marked; if not, act and mark it, or mark it and act."""
    ledger = os.open(order.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def act(key: str) -> None:
        time.sleep(0.001)  # as everything that has an effect takes its time
        os.write(ledger, f"{key} 0 {os.getpid()}\n".encode())
        time.sleep(0.001)

    def deliver(key: str) -> Said:
        mark = f"{order.folder}/marks/{key}"
        if os.path.exists(mark):
            return "done"
        if order.mode == "act first":
            act(key)
        os.close(os.open(mark, os.O_CREAT))
        if order.mode == "mark first":
            act(key)
        return "done"

    return deliver


def _leased(order: Order) -> Callable[[str], Said]:
    ledger = os.open(order.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @eo.once(connect(order), scope=SCOPE, key="key", lease=LEASE)
    def effect(key: str) -> None:
        os.write(ledger, f"{key} {eo.current().token} {os.getpid()}\n".encode())

    def deliver(key: str) -> Said:
        effect(key)
        return "done"

    return deliver


def _transactional(order: Order) -> Callable[[str], Said]:
    inbox = eo.Inbox(scope=SCOPE, table=order.place.table)
    kept: list[Any] = []

    @contextmanager
    def connection() -> Iterator[Any]:
        """One for the whole life, as a pool would give it; what was left in an error is not used again."""
        conn = kept.pop() if kept else _connection(order.place)
        try:
            yield conn
        except BaseException:
            conn.close()
            raise
        kept.append(conn)

    @inbox.handler(connect=connection)
    def effect(conn: Any, message: eo.Message[int]) -> None:
        run_sync(conn, f"INSERT INTO effects (scope, name) VALUES ('{SCOPE}', '{message.key}')")

    def deliver(key: str) -> Said:
        effect(eo.Message(data=1, id=key))
        return "done"

    return deliver


def _connection(place: Place) -> Any:
    """A plain one, in a transaction. PyMySQL would read every certificate of the machine first."""
    return pymysql_conn(place, ssl_disabled=True) if place.dialect == "mysql" else opened(place)


def _intents(order: Order) -> tuple[eo.Intents, Any]:
    intents = eo.Intents(connect(order), scope=SCOPE)
    keyed = order.mode == "K"
    options: dict[str, Any] = {} if keyed else {"without_key": "at-most-once"}
    line = http.client.HTTPConnection(order.provider.removeprefix("http://"), timeout=10)

    @intents.operation("stripe" if keyed else "ses", "charge", lease=LEASE, returns=dict[str, Any], **options)
    def charge(intent: eo.Intent[dict[str, Any]]) -> Any:
        try:
            line.request("POST", "/charges", json.dumps(intent.request), intent.headers)
            answer = line.getresponse()
            body = json.loads(answer.read())
        except BaseException:
            line.close()  # half an answer is not the next one's
            raise
        if answer.status != 200:
            raise Refused(answer.status, body)
        return body

    return intents, charge


def _called(order: Order) -> Callable[[str], Said]:
    _, charge = _intents(order)

    def deliver(key: str) -> Said:
        try:
            charge({"order": key, "amount": 4200}, key=key)
        except eo.InDoubt:
            return "doubt"  # it is in the operator's queue, where it is found: the queue need not keep it
        return "done"

    return deliver


# -- what came of it


def effects_of(order: Order) -> list[tuple[str, int]]:
    """Every effect of modes L and T that is there: its key, and in mode L the token that it ran under."""
    if order.mode == "T":
        with order.place.connected() as run:
            return [(name, 0) for (name,) in run("SELECT name FROM effects")]
    with open(order.ledger) as lines:
        return [(key, int(token)) for key, token, _ in map(str.split, lines)]


def in_doubt(order: Order) -> set[str]:
    """The keys that an operator has to decide."""
    if order.mode not in ("K", "I"):
        return set()
    intents, _ = _intents(order)
    with intents.store:
        return {intents.log(record).key for record in intents.in_doubt(limit=order.messages)}
