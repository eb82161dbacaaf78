"""kill -9 at every step of an intent's life, against a provider over HTTP: one charge, and nothing silently lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import effectonce as eo
from effectonce.intents.logged_intent import LoggedIntent
from tests.harness.provider import Provider

from .shop import STEPS, shop

pytestmark = pytest.mark.quick_on("postgresql")

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> str:
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path}/shop.db?timeout=60s"
    else:
        made = f"{request.getfixturevalue('postgres_url')}?prefix={unique_name}"
    with eo.connect(made) as store:
        store.migrate()
    return made


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


def killed_at(steps: Iterable[int], url: str, provider: Provider) -> dict[int, int]:
    """How processes end that are to die at these steps, each with an order of its own."""
    command = [sys.executable, "-m", "tests.intents.shop", url, provider.url, *map(str, steps)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=60)
    return dict(zip(steps, json.loads(done.stdout), strict=True))


def until_settled(url: str, provider: Provider, order: str) -> object:
    """Deliver it again, as a queue does."""
    intents, charge = shop(url, provider.url)
    with intents.store:
        for _ in range(1200):
            with suppress(eo.Retryable, eo.LeaseLost):
                return charge({"order": order, "amount": 4200}, key=order)
            time.sleep(0.05)
    raise AssertionError("it never came to an end")


@pytest.mark.chaos
def test_killed_at_every_step_it_is_charged_once(url: str, provider: Provider) -> None:
    """F03, mode K: claim, log, call and completion, each cut before and after."""
    ends = killed_at(range(STEPS + 1), url, provider)
    assert ends.pop(0) == 0, "and unharmed it simply works"
    assert set(ends.values()) == {-9}, f"not all steps were reached: {ends}"
    for step in ends:
        until_settled(url, provider, f"order-{step}")
        charges = [charge for charge in provider.charges if charge["order"] == f"order-{step}"]
        assert len(charges) == 1, f"killed at step {step}: {len(charges)} charges"


@pytest.mark.chaos
def test_recovery_in_another_process_finds_every_one_of_them(url: str, provider: Provider) -> None:
    """They are not redelivered: what was written down is resumed all the same."""
    steps = range(2, STEPS)  # before the first commit nothing is written down, after the last it is done
    assert set(killed_at(steps, url, provider).values()) == {-9}
    intents, _ = shop(url, provider.url)
    done = 0
    with intents.store:
        for _ in range(1200):
            done += intents.recover(idle="1ms").done
            if done == STEPS - 2:
                break
            time.sleep(0.05)
        assert done == STEPS - 2
        assert intents.in_doubt() == []
    assert sorted(charge["order"] for charge in provider.charges) == [f"order-{step}" for step in steps]


def test_a_dropped_answer_is_asked_for_again_under_the_same_key(url: str, provider: Provider) -> None:
    provider.next("drop")
    assert until_settled(url, provider, "o1") == {"id": "ch_1", "order": "o1", "amount": 4200}
    assert len(provider.charges) == 1
    assert len({key for _, key in provider.requests}) == 1


def test_a_500_is_replayed_by_the_provider_and_stays_unknown(url: str, provider: Provider) -> None:
    """Stripe replays a 500 once execution began: it never becomes a success, and never a second charge."""
    provider.next("500")
    _, charge = shop(url, provider.url)
    for _ in range(3):
        with pytest.raises(eo.OutcomeUnknown):
            charge({"order": "o1", "amount": 4200}, key="o1")
    assert provider.charges == []


def test_429_comes_before_the_keys_and_is_simply_sent_later(url: str, provider: Provider) -> None:
    provider.next("429", "401")
    assert until_settled(url, provider, "o1") == {"id": "ch_1", "order": "o1", "amount": 4200}
    assert len(provider.requests) == 3


def test_a_declined_card_is_final(url: str, provider: Provider) -> None:
    provider.next("decline")
    intents, charge = shop(url, provider.url)
    with intents.store:
        with pytest.raises(Exception, match="402"):
            charge({"order": "o1", "amount": 4200}, key="o1")
        with pytest.raises(eo.PermanentFailure, match="402"):
            charge({"order": "o1", "amount": 4200}, key="o1")
    assert len(provider.requests) == 1


# -- what else the provider may do


@pytest.mark.parametrize("fault", ["drop", "reset"])
def test_rule_3_a_lost_answer_is_unknown_and_the_same_key_finds_it(url: str, provider: Provider, fault: Any) -> None:
    provider.next(fault)
    intents, charge = shop(url, provider.url)
    with intents.store:
        with pytest.raises(eo.OutcomeUnknown):
            charge({"order": "o1", "amount": 4200}, key="o1")
        assert charge({"order": "o1", "amount": 4200}, key="o1")["id"] == "ch_1"
    assert len(provider.charges) == 1


def test_a_key_in_use_is_unknown_until_the_first_request_has_ended(url: str, provider: Provider) -> None:
    """Stripe's 409: the first sender lost its connection, and its request still runs."""
    provider.next("slow")
    intents, charge = shop(url, provider.url)
    order = {"order": "o1", "amount": 4200}
    with intents.store, ThreadPoolExecutor(1) as threads:
        id = charge.rules.intent_id("o1", "", "")
        key = charge.rules.provider_key(LoggedIntent(b"", "o1", "", ""))
        first = threads.submit(httpx.post, f"{provider.url}/charges", headers={"Idempotency-Key": key}, json=order)
        assert provider.begun.wait(30)
        with pytest.raises(eo.OutcomeUnknown, match="still running"):
            charge(order, key="o1")
        provider.release.set()
        assert first.result().status_code == 200
        assert charge(order, key="o1")["id"] == "ch_1"
        assert intents.store.get(charge.scope, id).state == "done"  # type: ignore[union-attr]
    assert len(provider.charges) == 1


def test_rule_5_past_the_window_nothing_is_sent_though_the_provider_would_execute_it(
    url: str, provider: Provider
) -> None:
    """The store's clock decides, on a real store: the window here is over before the second delivery."""
    provider.next("drop")
    intents, charge = shop(url, provider.url)
    charge.rules = msgspec.structs.replace(charge.rules, window_us=50_000, margin_us=0)
    with intents.store:
        with pytest.raises(eo.OutcomeUnknown):
            charge({"order": "o1", "amount": 4200}, key="o1")
        provider.forget()
        time.sleep(0.06)
        with pytest.raises(eo.InDoubt):
            charge({"order": "o1", "amount": 4200}, key="o1")
        assert len(intents.in_doubt()) == 1
    assert len(provider.charges) == len(provider.requests) == 1


def test_two_recoveries_and_the_sender_at_once_charge_once(url: str, provider: Provider) -> None:
    provider.next(*["drop"] * 10)
    intents, charge = shop(url, provider.url)
    orders = [{"order": f"o{number}", "amount": 4200} for number in range(10)]
    with intents.store:
        for order in orders:
            with pytest.raises(eo.OutcomeUnknown):
                charge(order, key=order["order"])
        others = [shop(url, provider.url)[0] for _ in range(2)]
        time.sleep(0.002)
        with others[0].store, others[1].store, ThreadPoolExecutor(3) as threads:
            jobs = [threads.submit(other.recover, idle="1ms") for other in others]
            jobs.append(threads.submit(lambda: [until_settled(url, provider, order["order"]) for order in orders]))
            for job in jobs:
                job.result()
    assert sorted(charge["order"] for charge in provider.charges) == sorted(order["order"] for order in orders)
