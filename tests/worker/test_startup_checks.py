"""What a worker refuses to start with, and how much it asks its broker for."""

from __future__ import annotations

from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import BrokerCapabilities
from effectonce.worker.startup_checks import check_key, check_spans, fit_lease

from .bench import Bench, serving, until
from .test_options import connect, handle, handle_in_transaction, route_of

DAY_S = 86_400.0
NO_RETRIES = eo.Retry(1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def broker(**capabilities: Any) -> BrokerCapabilities:
    return BrokerCapabilities(name="fake", **capabilities)


# -- leases


@pytest.mark.parametrize(("window", "lease"), [(None, 30.0), (90.0, 30.0), (60.0, 30.0), (20.0, 10.0)])
def test_a_lease_that_nobody_has_set_is_at_most_half_of_the_ack_window(
    bench: Bench, window: float | None, lease: float
) -> None:
    route = route_of(bench.worker())
    fit_lease(route, broker(ack_window_s=window))
    assert route.policy.lease_us == lease * 1e6


def test_a_lease_that_was_set_stays_and_must_end_within_the_ack_window(bench: Bench) -> None:
    route = route_of(bench.worker(), lease="20s", retry=NO_RETRIES)
    fit_lease(route, broker(ack_window_s=20.0))
    assert route.policy.lease_us == 20_000_000
    check_spans(route, broker(ack_window_s=20.1), 0.0)
    with pytest.raises(eo.ConfigurationError, match="has a lease of 20s, and fake delivers again after 20s"):
        check_spans(route, broker(ack_window_s=20.0), 0.0)


def test_where_nothing_is_leased_the_ack_window_may_be_short(bench: Bench) -> None:
    transactional = eo.Worker(bench.broker, inbox=eo.Inbox(scope="billing"), connect=connect)
    check_spans(route_of(bench.worker(), mode="seen", lease="20s"), broker(ack_window_s=1.0), 0.0)
    check_spans(route_of(transactional, handle_in_transaction, lease="20s"), broker(ack_window_s=1.0), 0.0)


# -- offsets as keys


def test_only_a_broker_with_offsets_may_have_them_for_keys(bench: Bench) -> None:
    route = route_of(bench.worker(), key="topic:partition:offset")
    check_key(route, broker(has_offsets=True))
    with pytest.raises(eo.ConfigurationError, match="messages of fake have no offset; name what the sender has made"):
        check_key(route, broker())
    check_key(route_of(bench.worker(), key="message.data"), broker())


# -- F25: records outlive every duplicate


def test_records_outlive_redeliveries_retries_and_redrives(bench: Bench) -> None:
    retry = eo.Retry(3, first="1h", factor=2, cap="1d", jitter=False)  # 1 h, then 2 h
    worker = bench.worker()
    enough = route_of(worker, retention="27h", retry=retry)
    check_spans(enough, broker(redelivery_horizon_s=DAY_S * 5 / 6), 4 * 3600.0)
    short = route_of(bench.worker(), retention=27 * 3600 - 1, retry=retry, scope="short")
    with pytest.raises(eo.ConfigurationError) as refused:
        check_spans(short, broker(redelivery_horizon_s=DAY_S * 5 / 6), 4 * 3600.0)
    assert "after 1.12d (20h redelivery by fake + 3h of retries + 4h redrive_within)" in str(refused.value)


def test_only_what_there_is_is_named_as_the_reason(bench: Bench) -> None:
    route = route_of(bench.worker(), retention="1h", retry=NO_RETRIES)
    check_spans(route, broker(), 3600.0)
    with pytest.raises(eo.ConfigurationError, match=r"after 2h \(2h redrive_within\)"):
        check_spans(route, broker(), 7200.0)
    with pytest.raises(eo.ConfigurationError, match=r"after 2h \(2h redelivery by fake\)"):
        check_spans(route, broker(redelivery_horizon_s=7200.0), 0.0)


def test_a_rule_without_end_counts_by_its_own_pauses_not_by_those_of_the_others(bench: Bench) -> None:
    weekly = eo.Retry(None, first="1d", cap="7d")
    route = route_of(bench.worker(), retention="7d", retry=eo.Retry(3, on={OSError: weekly}))
    check_spans(route, broker(), 0.0)
    with pytest.raises(eo.ConfigurationError, match="7d of retries"):
        check_spans(route, broker(), 1.0)
    endless = route_of(bench.worker(), retry=eo.Retry(3, on={OSError: eo.Retry(None, cap=None)}), scope="endless")
    with pytest.raises(eo.ConfigurationError, match="retries forever"):
        check_spans(endless, broker(), 0.0)


def test_of_retries_without_end_the_longest_delay_counts(bench: Bench) -> None:
    route = route_of(bench.worker(), retention="1h", retry=eo.Retry(None, cap="1h"))
    check_spans(route, broker(), 0.0)
    with pytest.raises(eo.ConfigurationError, match="1h of retries"):
        check_spans(route, broker(), 1.0)
    with pytest.raises(eo.ConfigurationError, match="retries forever, with delays that grow without limit"):
        check_spans(route_of(bench.worker(), retry=eo.Retry(None, cap=None), scope="s"), broker(), 0.0)


# -- how much is asked for


@pytest.mark.parametrize(
    ("worker_options", "handler_options", "asked_for"),
    [
        ({}, {}, 300),  # twice what runs at once, and half as much again that waits for its ack
        ({}, {"concurrency": 1}, 3),
        ({}, {"concurrency": 5000}, 1500),
        ({"prefetch": 10}, {}, 15),
        ({"prefetch": 1}, {"concurrency": 50}, 1),
    ],
    ids=repr,
)
async def test_a_broker_is_asked_for_what_the_handlers_can_take(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    worker_options: dict[str, Any],
    handler_options: dict[str, Any],
    asked_for: int,
) -> None:
    prefetches: list[int] = []
    consumer = bench.backend.consumer

    def note(queue: str, *, group: str, prefetch: int) -> Any:
        prefetches.append(prefetch)
        return consumer(queue, group=group, prefetch=prefetch)

    monkeypatch.setattr(bench.backend, "consumer", note)
    worker = bench.worker(**worker_options)
    worker.handler("orders", **handler_options)(handle)
    async with serving(worker):
        await until(lambda: worker.phase == "running")
    assert prefetches == [asked_for]
