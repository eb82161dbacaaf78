"""The handlers of a soak, per mode, whose process may be killed at any moment.

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

import httpx  # noqa: F401  (before the fork, as all that a victim needs)
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
Reply = Literal["done", "later", "doubt"]

SCOPE = "soak"
LEASE_S = 0.4  # short, since a killed owner's messages wait for its end
NAIVE_PAUSE_S = 0.02  # before and after the effect of a control arm: so long that kills hit it on a busy machine, too


class SoakPlan(Struct, frozen=True):
    """The plan of one soak, which its process gets as JSON."""

    mode: Mode
    url: str
    folder: str
    seed: str
    messages: int
    kills: int
    seconds: float = 3600.0  # after that, messages that were never delivered are withdrawn
    workers: int = 4
    provider: str = ""

    @property
    def ledger(self) -> str:
        return f"{self.folder}/ledger"

    @property
    def place(self) -> Place:
        scheme = self.url.partition(":")[0]
        return Place("mysql" if scheme == "mariadb" else scheme, self.url, "soak_inbox")  # type: ignore[arg-type]


def connect(plan: SoakPlan) -> eo.Store:
    return eo.connect(plan.url, sweep_every=None)


def set_up(plan: SoakPlan) -> None:
    """Prepare stores and tables, once, before the first victim."""
    if plan.mode in CONTROLS:
        os.mkdir(f"{plan.folder}/marks")
        return
    if plan.mode == "T":
        place = plan.place
        if place.dialect == "sqlite":
            with place.connected() as run:
                run("PRAGMA journal_mode = WAL")
        prepare(place)
        return
    with connect(plan) as store:
        store.migrate()
        store.check()


class ChargeRefused(Exception):
    """The provider's answer where it is not a success; `providers.classify` reads its status."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status} {body}")
        self.status_code = status
        self.body = body


def make_deliver(plan: SoakPlan) -> Callable[[str], Reply]:
    """Make the function that handles one message, by its key. A queue redelivers a message for which it raises."""
    makers = {"L": _make_leased, "T": _make_transactional, "K": _make_intents_caller, "I": _make_intents_caller}
    return makers.get(plan.mode, _make_naive)(plan)


def _make_naive(plan: SoakPlan) -> Callable[[str], Reply]:
    """Look whether it is marked; if not, act and mark it, or mark it and act."""
    ledger = os.open(plan.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def act(key: str) -> None:
        time.sleep(NAIVE_PAUSE_S)
        os.write(ledger, f"{key} 0 {os.getpid()}\n".encode())
        time.sleep(NAIVE_PAUSE_S)

    def deliver(key: str) -> Reply:
        mark = f"{plan.folder}/marks/{key}"
        if os.path.exists(mark):
            return "done"
        if plan.mode == "act first":
            act(key)
        os.close(os.open(mark, os.O_CREAT))
        if plan.mode == "mark first":
            act(key)
        return "done"

    return deliver


def _make_leased(plan: SoakPlan) -> Callable[[str], Reply]:
    ledger = os.open(plan.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @eo.once(connect(plan), scope=SCOPE, key="key", lease=LEASE_S)
    def effect(key: str) -> None:
        os.write(ledger, f"{key} {eo.current().token} {os.getpid()}\n".encode())

    def deliver(key: str) -> Reply:
        effect(key)
        return "done"

    return deliver


def _make_transactional(plan: SoakPlan) -> Callable[[str], Reply]:
    inbox = eo.Inbox(scope=SCOPE, table=plan.place.table)
    idle_connections: list[Any] = []

    @contextmanager
    def connection() -> Iterator[Any]:
        """Yield the connection of the whole victim, as a pool would; one that had an error is not used again."""
        conn = idle_connections.pop() if idle_connections else _connection(plan.place)
        try:
            yield conn
        except BaseException:
            conn.close()
            raise
        idle_connections.append(conn)

    @inbox.handler(connect=connection)
    def effect(conn: Any, message: eo.Message[int]) -> None:
        run_sync(conn, f"INSERT INTO effects (scope, name) VALUES ('{SCOPE}', '{message.key}')")

    def deliver(key: str) -> Reply:
        effect(eo.Message(data=1, id=key))
        return "done"

    return deliver


def _connection(place: Place) -> Any:
    """Open a plain connection, in a transaction. With TLS, PyMySQL would read every certificate of the machine."""
    return pymysql_conn(place, ssl_disabled=True) if place.dialect == "mysql" else opened(place)


def _intents(plan: SoakPlan) -> tuple[eo.Intents, Any]:
    intents = eo.Intents(connect(plan), scope=SCOPE)
    keyed = plan.mode == "K"
    options: dict[str, Any] = {} if keyed else {"without_key": "at-most-once"}
    connection = http.client.HTTPConnection(plan.provider.removeprefix("http://"), timeout=10)

    @intents.operation("stripe" if keyed else "ses", "charge", lease=LEASE_S, returns=dict[str, Any], **options)
    def charge(intent: eo.Intent[dict[str, Any]]) -> Any:
        try:
            connection.request("POST", "/charges", json.dumps(intent.request), intent.headers)
            answer = connection.getresponse()
            body = json.loads(answer.read())
        except BaseException:
            connection.close()  # the rest of half an answer must not answer the next request
            raise
        if answer.status != 200:
            raise ChargeRefused(answer.status, body)
        return body

    return intents, charge


def _make_intents_caller(plan: SoakPlan) -> Callable[[str], Reply]:
    _, charge = _intents(plan)

    def deliver(key: str) -> Reply:
        try:
            charge({"order": key, "amount": 4200}, key=key)
        except eo.InDoubt:
            return "doubt"  # the operator finds it on the list: the queue need not keep it
        return "done"

    return deliver


# -- the effects


def list_effects(plan: SoakPlan) -> list[tuple[str, int]]:
    """Return every effect of modes L and T: its key, and in mode L the token that it ran under."""
    if plan.mode == "T":
        with plan.place.connected() as run:
            return [(name, 0) for (name,) in run("SELECT name FROM effects")]
    with open(plan.ledger) as lines:
        return [(key, int(token)) for key, token, _ in map(str.split, lines)]


def list_in_doubt(plan: SoakPlan) -> set[str]:
    """Return the keys that an operator has to decide."""
    if plan.mode not in ("K", "I"):
        return set()
    intents, _ = _intents(plan)
    with intents.store:
        return {intents.log(record).key for record in intents.in_doubt(limit=plan.messages)}
