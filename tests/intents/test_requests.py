"""The request of an intent: how it is frozen, and read again."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import msgspec
import pytest

import effectonce as eo
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent
from effectonce.store import Store
from effectonce.testing import ManualClock

from .bank import Payment


@pytest.mark.parametrize("request_", [{"rate": float("nan")}, (1, 2), {5: "five"}])
def test_a_request_that_would_change_by_being_frozen_is_refused(intents: Intents, request_: Any) -> None:
    @intents.operation("stripe", "untyped")
    def untyped(intent: Intent[Any]) -> None:
        raise AssertionError("nothing may be sent")

    with pytest.raises(eo.ConfigurationError, match="cannot be stored"):
        untyped(request_, key="k")


def test_the_order_of_a_requests_members_is_no_other_request(intents: Intents) -> None:
    """F22."""

    @intents.operation("stripe", "untyped")
    def untyped(intent: Intent[Any]) -> int:
        return 1

    untyped({"a": 1, "b": 2}, key="k")
    assert untyped.call({"b": 2, "a": 1}, key="k").replayed


def test_a_frozen_request_that_no_longer_reads_is_not_counted_as_sent(
    clock: ManualClock, store: Store, intents: Intents
) -> None:
    """A deploy changed the type of the requests; nothing is sent, and nothing is in doubt."""

    @intents.operation("ses", "send", without_key="at-most-once")
    def send(intent: Intent[dict[str, str]]) -> None:
        raise httpx.ConnectError("refused")

    with pytest.raises(eo.NotExecuted):
        send({"to": "ann"}, key="m")
    deployed = Intents(Store(store.runtime.backend, sweep_every=None), scope="billing")

    @deployed.operation("ses", "send", without_key="at-most-once")
    def changed(intent: Intent[Payment]) -> None:
        raise AssertionError("nothing may be sent")

    clock.advance("2m")
    assert deployed.recover().broken == 1
    (record,) = store.list(scope=send.scope).records
    assert (record.state, intents.log(record).send_count) == ("free", 0)


class Invoice(msgspec.Struct):
    amount: Decimal
    due: datetime


def test_decimals_and_dates_are_frozen_as_they_are(intents: Intents) -> None:
    sent: list[Invoice] = []

    @intents.operation("stripe", "invoice")
    def invoice(intent: Intent[Invoice]) -> Decimal:
        sent.append(intent.request)
        if len(sent) == 1:
            raise TimeoutError
        return intent.request.amount

    asked = Invoice(Decimal("0.10"), datetime(2026, 1, 31, 23, 59, tzinfo=UTC))
    with pytest.raises(eo.OutcomeUnknown):
        invoice(asked, key="i")
    assert [invoice(asked, key="i"), invoice(asked, key="i")] == [Decimal("0.10")] * 2
    assert sent == [asked, asked]
    assert str(sent[1].amount) == "0.10"
    with pytest.raises(eo.PayloadMismatch):
        invoice(Invoice(Decimal("0.20"), asked.due), key="i")


def test_secrets_do_not_get_out_of_a_frozen_request(
    clock: ManualClock, intents: Intents, caplog: pytest.LogCaptureFixture
) -> None:
    """F65, F66: neither by the intent's repr, nor by the URL in a client's error."""
    seen = []

    @intents.operation("stripe", "charge")
    def charge(intent: Intent[dict[str, str]]) -> None:
        seen.append(repr(intent))
        request = httpx.Request("POST", "https://shop:canary-1@api.example/v1?api_key=canary-2&size=9")
        raise httpx.ReadTimeout(f"no answer from {request.url}\r\nforged \x1b[31m", request=request)

    with pytest.raises(eo.OutcomeUnknown) as told:
        charge({"card": "canary-3"}, key="k")
    clock.advance("2m")
    intents.recover()
    text = f"{told.value} {seen} {caplog.text}"
    assert "canary" not in text
    assert "api.example" in text
    assert not {"\n", "\r", "\x1b"} & set(str(told.value))


def test_two_functions_cannot_be_one_operation_of_a_store() -> None:
    """Under two `Intents` of one scope: the second function would never run for a request that the first has sent."""
    store = eo.connect("memory://", sweep_every=None)
    first, second = (eo.Intents(store, scope="shop") for _ in range(2))

    @first.operation("stripe", "charge")
    def charge(intent: Intent[str]) -> None: ...

    with pytest.raises(eo.ScopeTaken):

        @second.operation("stripe", "charge")
        def charge_otherwise(intent: Intent[str]) -> None:
            raise AssertionError
