"""`effectonce verify` on handlers that have never heard of effectonce, and on guarded ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run

SHOP = """
import sqlite3

import effectonce as eo

charges, seen = [], set()
store = eo.connect("memory://")


def naive(payment_id, amount):
    charges.append((payment_id, amount))


def looks_first(payment_id, amount):
    if payment_id in seen:
        return
    charges.append((payment_id, amount))
    seen.add(payment_id)


@eo.once(store, scope="charge", key="payment_id")
def guarded(payment_id: str, amount: int) -> int:
    charges.append((payment_id, amount))
    return amount


@eo.once(store, scope="message")
async def of_a_message(message: eo.Message):
    charges.append((message.data["payment_id"], message.data["amount"]))


worker = eo.Worker(eo.connect_broker("memory://"), store=store, name="billing")


@worker.handler("payments", type="payment")
def handled(message: eo.Message[dict]) -> None:
    charges.append(message.data["amount"])


@worker.handler("refunds")
def refunded(message: eo.Message[dict]) -> None:
    charges.append(-message.data["amount"])


inbox = eo.Inbox(scope="balances")
in_transactions = eo.Worker(
    eo.connect_broker("memory://"), inbox=inbox, connect=lambda: sqlite3.connect("shop.db", timeout=10)
)


@in_transactions.handler("payments")
def balance(connection, message: eo.Message[dict]) -> None:
    connection.execute("INSERT INTO balances VALUES (?)", (message.data["amount"],))


def count_balances():
    with sqlite3.connect("shop.db") as connection:
        return connection.execute("SELECT count(*) FROM balances").fetchone()[0]


def create_tables():
    with sqlite3.connect("shop.db") as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS balances (amount)")
        connection.executescript(inbox.schema_sql("sqlite"))


create_tables()


def count():
    return len(charges)


not_a_function = 3
"""

WEB = """
import effectonce as eo
from celery import Celery
from effectonce.http.asgi import IdempotencyMiddleware
from effectonce.integrations.celery import guard_tasks
from fastapi import APIRouter, FastAPI, Header, HTTPException

store = eo.connect("memory://")
app, guarded, router, tasks, charges = FastAPI(), FastAPI(), APIRouter(), Celery("shop"), []
guarded.add_middleware(IdempotencyMiddleware, store=store, principal=eo.GLOBAL)
guard_tasks(tasks, store)


@app.post("/payments")
@guarded.post("/payments")
def pay(payment: dict[str, int | str]) -> None:
    charges.append(payment)


@app.post("/payments/{id}")
def pay_one(id: int, authorization: str = Header("")) -> None:
    if authorization != "Bearer ada":
        raise HTTPException(401)
    charges.append(id)


@router.post("/routed")
def routed() -> None: ...


@tasks.task
def charge(payment_id: str, amount: int) -> None:
    charges.append(payment_id)


def count():
    return len(charges)
"""


@pytest.fixture
def shop(tmp_path: Path) -> list[str]:
    """The options that every call here has."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "web.py").write_text(WEB)
    (tmp_path / "payment.json").write_text('{"payment_id": "pay_1", "amount": 4200}')
    return ["--message", "payment.json", "--effects", "shop:count"]


def test_a_double_charge_is_reported_with_exit_code_1(run: Run, shop: list[str]) -> None:
    done = run("verify", "shop:naive", *shop)
    assert (done.returncode, done.stderr) == (1, "")
    assert "[fail] delivered twice: 1 of 1 trials: doubled" in done.stdout
    assert "naive is not idempotent." in done.stdout
    assert "guard the handler with @eo.once" in done.stdout


def test_each_scenario_has_its_verdict(run: Run, shop: list[str]) -> None:
    done = run("verify", "shop:looks_first", *shop, "--reset", "shop:seen.clear")
    assert done.returncode == 1
    verdicts = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert verdicts == [
        "[ok] delivered twice: one effect in 1 of 1 trials",
        "[fail] delivered 5 times at once: 1 of 1 trials: doubled",
        "[ok] delivered again an hour later: one effect in 1 of 1 trials",
        "[fail] killed: 1 of 3 trials: doubled",
        "[fail] raises: 1 of 3 trials: doubled",
    ]


def test_a_guarded_handler_passes_and_its_window_is_named(run: Run, shop: list[str]) -> None:
    done = run("verify", "shop:guarded", *shop)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[may] killed: repeated in 2 of" in done.stdout
    summary, _, first = done.stdout.partition(" where its mode says it may. The first:\n\n")
    assert "guarded: " in summary
    assert "nothing lost" in summary
    assert first.startswith("killed before ")
    assert "commit both in one transaction" in " ".join(first.split())
    assert run("verify", "shop:guarded", *shop, "--strict").returncode == 1


def test_an_async_handler_of_a_message(run: Run, shop: list[str]) -> None:
    done = run("verify", "shop:of_a_message", *shop, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert (facts["handler"], facts["ok"]) == ("of_a_message", True)
    assert {trial["verdict"] for trial in facts["trials"]} == {"once", "may repeat"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shop:missing"], "'shop:missing' was not found"),
        (["nowhere:naive"], "No module named 'nowhere'"),
        (["naive"], "is not a MODULE:NAME"),
        (["shop:not_a_function"], "is a int, which cannot be tried"),
        (["shop:looks_first"], "Pass reset="),
        (["shop:naive", "--message", "missing.json"], "missing.json cannot be read as JSON"),
        (["shop:naive", "--message", "shop.py"], "shop.py cannot be read as JSON"),
    ],
)
def test_wrong_arguments_are_a_one_line_error(run: Run, shop: list[str], arguments: list[str], message: str) -> None:
    done = run("verify", arguments[0], *shop, *arguments[1:])
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("handler", ["shop:handled", "shop:worker:payments", "shop:worker:refunds"])
def test_a_workers_handler_runs_in_its_worker(run: Run, shop: list[str], handler: str) -> None:
    done = run("verify", handler, *shop)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[ok] loses its store: one effect in 4 of 4 trials" in done.stdout
    assert f"shop:{'refunded' if 'refunds' in handler else 'handled'}: " in done.stdout


def test_a_handler_in_transactions_runs_on_connections_of_its_worker(run: Run, shop: list[str]) -> None:
    options = [*shop[:2], "--effects", "shop:count_balances", "--strict"]
    done = run("verify", "shop:balance", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing lost, nothing doubled" in done.stdout


def test_a_celery_task_is_called_with_the_arguments_in_the_file(run: Run, shop: list[str]) -> None:
    done = run("verify", "web:charge", *shop[:2], "--effects", "web:count")
    assert (done.returncode, done.stderr) == (0, "")
    assert "web.charge: " in done.stdout


def test_a_route_gets_the_file_as_the_body_of_its_request(run: Run, shop: list[str]) -> None:
    options = [*shop[:2], "--effects", "web:count"]
    unguarded = run("verify", "web:pay", *options)
    assert (unguarded.returncode, unguarded.stderr) == (1, "")
    assert "POST /payments is not idempotent." in unguarded.stdout
    guarded = run("verify", "web:guarded", *options, "--request", "POST /payments", "--strict")
    assert (guarded.returncode, guarded.stderr) == (0, "")


def test_a_request_has_the_path_and_the_headers_that_are_given(run: Run, shop: list[str]) -> None:
    options = ["--effects", "web:count", "--request", "POST /payments/7"]
    assert "it answered 401" in run("verify", "web:pay_one", *options).stderr
    done = run("verify", "web:app", *options, "--header", "Authorization: Bearer ada", "-H", "X-Trace: 1")
    assert done.returncode == 1
    assert "POST /payments/7 is not idempotent." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shop:worker"], "has several queues, payments, refunds"),
        (["shop:worker:mails"], "worker billing has no handler for queue 'mails'; it has payments, refunds"),
        (["shop:naive:payments"], "'naive' is not a worker"),
        (["shop:store"], "which cannot be tried"),
        (["shop:naive", "--request", "POST /payments"], "'shop:naive' is not one"),
        (["shop:naive", "--header", "X: 1"], "--header is for a request"),
        (["web:app"], "give --request 'POST /orders'"),
        (["web:app", "--request", "POST"], "give --request 'POST /orders'"),
        (["web:app", "--request", "POST /payments", "--header", "X"], "has no value"),
        (["web:pay_one"], "its path is /payments/{id}"),
        (["web:routed"], "is a route of a router"),
    ],
)
def test_what_is_missing_is_named(run: Run, shop: list[str], arguments: list[str], message: str) -> None:
    done = run("verify", *arguments, *shop)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_function_needs_a_message(run: Run, shop: list[str]) -> None:
    assert "give --message FILE" in run("verify", "shop:naive", *shop[2:]).stderr
