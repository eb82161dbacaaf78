"""Processes that are killed at a step of their own: ``python -m tests.inbox.victim``, then one order a line.

The parent imports everything once and forks for each order, so that a life costs milliseconds. An order is JSON:
``{"dialect", "url", "table", "scope", "key", "deliveries": [at, …]}``: so many processes at once, each with the same
message; one with a number is killed at that step of its life, one with null is not. The answer is what became of each:
``"acked"``, ``"killed"`` or its error, and how many steps it had.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import traceback
from typing import Any, NoReturn

import psycopg  # noqa: F401  (before the fork)
import pymysql  # noqa: F401

import effectonce as eo
import effectonce.public
from effectonce.sessions import base_session, mysql, sqlite
from effectonce.sessions import psycopg as callers_psycopg
from tests.inbox.kinds import Place, run_sync
from tests.inbox.test_inputs import opened

METHODS = ("rows", "begin", "commit", "roll_back", "close")
DRIVERS = (base_session.BaseDriverSession, sqlite.SQLiteSession, callers_psycopg.PsycopgSession, mysql.MySQLSession)


class Life:
    """Counts the steps of a process, and ends it at one of them."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """A step before and after all that is said to the database."""
        for kind in DRIVERS:
            for name in METHODS:
                if name in vars(kind):
                    setattr(kind, name, self._around(getattr(kind, name)))

    def _around(self, method: Any) -> Any:
        @functools.wraps(method)
        async def watched(*args: Any, **kwargs: Any) -> Any:
            self.step()
            answer = await method(*args, **kwargs)
            self.step()
            return answer

        return watched


def live(order: dict[str, Any], at: int | None) -> tuple[str, int]:
    place = Place(order["dialect"], order["url"], order["table"])
    inbox = eo.Inbox(scope=order["scope"], table=place.table)
    life = Life(at)

    @inbox.handler(connect=lambda: opened(place), max_attempts=order.get("max_attempts"), allow_unsafe=True)
    def handle(conn: Any, message: eo.Message[int]) -> int:
        life.step()
        run_sync(conn, f"INSERT INTO effects (scope, name) VALUES ('{order['scope']}', '{message.key}')")
        life.step()
        return message.data

    life.watch()
    message = eo.Message(data=4200, key=order["key"])
    outcome = handle.call(message)
    life.step()  # and now the ack
    assert outcome.value == 4200
    return "acked", life.steps


def fork(order: dict[str, Any], at: int | None) -> tuple[int, int]:
    """Process id, and what it will write its last words to."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            said: Any = live(order, at)
        except BaseException:
            said = traceback.format_exc(), 0
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    return pid, reader


def ended(pid: int, reader: int) -> list[Any]:
    with os.fdopen(reader, "rb") as words:
        said = words.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return ["killed", 0]
    return list(json.loads(said))


def main() -> NoReturn:
    for line in sys.stdin:
        order = json.loads(line)
        lives = [fork(order, at) for at in order["deliveries"]]
        print(json.dumps([ended(*life) for life in lives]), flush=True)
    sys.exit()


if __name__ == "__main__":
    main()
