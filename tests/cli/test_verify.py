"""`effectonce verify` on handlers that have never heard of effectonce, and on guarded ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run

SHOP = """
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


def count():
    return len(charges)


not_a_function = 3
"""


@pytest.fixture
def shop(tmp_path: Path) -> list[str]:
    """The options that every call here has."""
    (tmp_path / "shop.py").write_text(SHOP)
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
    assert "guarded: " in done.stdout
    assert "nothing lost" in done.stdout
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
        (["shop:not_a_function"], "is a int, which cannot be called"),
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
