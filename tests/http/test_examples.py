"""The examples, each under its server and on real stores: a duplicate, a concurrent duplicate, a killed worker.

Effects are counted where they cannot be undone: in the bank's book, which is a file, and in the table of orders.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

import effectonce as eo
from effectonce.http import Response, record_key
from tests.harness.installed import ROOT
from tests.harness.waiting import until
from tests.harness.web import Web, web

EXAMPLES = ROOT / "examples"


def post(server: Web, path: str, key: str, body: dict[str, Any], token: str = "a-token") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)


def code(answer: httpx.Response) -> str:
    return str(answer.json()["code"]) if answer.headers["content-type"] == "application/problem+json" else ""


@contextmanager
def in_flight(server: Web, path: str, key: str, body: dict[str, Any]) -> Iterator[None]:
    """A request whose answer never comes: its server will be killed."""

    def lost() -> None:
        with pytest.raises(httpx.TransportError):
            post(server, path, key, body)

    thread = threading.Thread(target=lost)
    thread.start()
    yield
    thread.join(30)


def charged(server: Web) -> list[str]:
    book = Path(server.dir, "bank.txt")
    return book.read_text().splitlines() if book.exists() else []


FASTAPI = ("-m", "uvicorn", "--app-dir", str(EXAMPLES / "http"), "fastapi_app:app", "--port", "{port}")
FLASK = ("-m", "flask", "--app", str(EXAMPLES / "http" / "flask_app.py"), "run", "--port", "{port}")
DJANGO = (str(EXAMPLES / "django" / "app.py"), "runserver", "--noreload", "{port}")


@pytest.mark.quick_on("fastapi")
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("arguments", "on"),
    [(FASTAPI, "redis"), (FLASK, "postgres"), (DJANGO, "postgres")],
    ids=["fastapi", "flask", "django"],
)
def test_a_card_is_charged_once(
    arguments: tuple[str, ...], on: str, request: pytest.FixtureRequest, unique_name: str
) -> None:
    """F63, F04, F12 and line 12: however often callers ask, at once, before and after the process was killed."""
    url = request.getfixturevalue("empty_postgres") if on == "postgres" else request.getfixturevalue("redis_url")
    url = url if on == "postgres" else f"{url}?namespace={unique_name}"
    variables = {"EFFECTONCE_STORE": url, "BANK_SECONDS": "60"}
    store = eo.connect(url)
    if arguments is DJANGO:
        place = urlsplit(url)
        variables["DATABASE"] = f"postgresql {place.path[1:]} {place.port}"
    store.migrate()
    payment = {"order": "4711", "amount": 4200}
    with store, web(*arguments, variables=variables) as server:
        # Killed while the bank has charged and not yet confirmed.
        with in_flight(server, "/charges", "k1", payment):
            until(lambda: charged(server))
            beside = post(server, "/charges", "k1", payment)
            assert (beside.status_code, code(beside), beside.headers["retry-after"]) == (409, "in-progress", "1")
            server.kill()
        server.variables["BANK_SECONDS"] = "0"
        server.restart()
        until(lambda: code(post(server, "/charges", "k1", payment)) != "in-progress")
        doubted = post(server, "/charges", "k1", payment)
        assert (doubted.status_code, code(doubted), charged(server)) == (409, "in-doubt", ["alice 4711 4200"])
        # Somebody asks the bank, and says that it has charged.
        identity = record_key("alice", "POST", "/charges", "k1")
        store.resolve("shop", identity, "done", result=Response(201, [("content-type", "application/json")], b"{}"))
        assert (post(server, "/charges", "k1", payment).status_code, len(charged(server))) == (201, 1)
        # A duplicate, one beside the other, another's key, another payload, nobody.
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: post(server, "/charges", "k2", payment), range(8)))
        assert {answer.status_code for answer in answers} <= {201, 409}
        again = post(server, "/charges", "k2", payment)
        assert (again.status_code, again.json()) == (201, payment)
        assert (again.headers["idempotent-replayed"], len(charged(server))) == ("true", 2)
        assert {answer.content for answer in answers if answer.status_code == 201} == {again.content}
        assert post(server, "/charges", "k2", payment, token="b-token").status_code == 201
        assert charged(server)[2:] == ["bob 4711 4200"]
        assert post(server, "/charges", "k2", {"order": "4711", "amount": 1}).status_code == 422
        assert post(server, "/charges", "k2", payment, token="no-token").status_code == 401
        assert len(charged(server)) == 3


@pytest.mark.long
@pytest.mark.chaos
def test_an_order_is_placed_once_in_one_commit(empty_postgres: str) -> None:
    """F03, mode T: a worker that dies before its commit leaves nothing, and the retry runs; then it is replayed."""
    place = urlsplit(empty_postgres)
    variables = {"DATABASE": f"postgresql {place.path[1:]} {place.port}", "BANK_SECONDS": "60"}
    migrate, order = (DJANGO[0], "migrate"), {"order": "book", "amount": 1}
    server = Web(*DJANGO, variables=variables)
    server.run(["env", *(f"{name}={value}" for name, value in variables.items()), *Web(*migrate).command()])
    with psycopg.connect(empty_postgres, autocommit=True) as books, server.start():

        def orders() -> int:
            return int(books.execute("SELECT count(*) FROM orders").fetchall()[0][0])

        def working() -> bool:
            here = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
            return bool(books.execute(here).fetchall())

        with in_flight(server, "/orders", "k1", order):
            until(working)
            server.kill()
        server.variables["BANK_SECONDS"] = "0.2"
        server.restart()
        assert orders() == 0
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: post(server, "/orders", "k1", order), range(4)))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.content for answer in answers}) == 1
        assert sum("idempotent-replayed" in answer.headers for answer in answers) == 3
        assert orders() == 1
        assert post(server, "/orders", "k1", order, token="b-token").headers.get("idempotent-replayed") is None
        refused = post(server, "/orders", "k1", {**order, "amount": 2})
        assert (refused.status_code, code(refused), orders()) == (422, "payload-mismatch", 2)
        missing = httpx.post(f"{server.url}/orders", json=order, headers={"Authorization": "Bearer a-token"})
        assert (missing.status_code, code(missing)) == (400, "missing-key")
