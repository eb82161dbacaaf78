"""The real babelqueue package, its guard and its runtime, on our stores."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from babelqueue import BabelQueue, EnvelopeCodec, idempotency

import effectonce as eo
from effectonce.babelqueue.seen_set import seen_set

URN = "urn:babel:payments:charge"


@pytest.fixture(params=["memory", "sqlite", "redis", "private"])
def store(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[eo.Store]:
    options: dict[str, Any] = {}
    url = "memory://"
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'shop.db'}"
    elif request.param == "redis":
        url = f"{request.getfixturevalue('redis_url')}?namespace={unique_name}"
    elif request.param == "private":
        options["private"] = "a secret of enough bytes"
    with eo.connect(url, **options) as store:
        yield store


class Shop:
    """A consumer on babelqueue's memory transport, its charges, and one envelope to deliver to it as often as asked."""

    def __init__(self, seen: Any, **options: Any) -> None:
        self.app = BabelQueue("memory://", queue="payments", **options)
        self.app.register(URN, idempotency.wrap(seen, self.charge))
        self.charges: list[str] = []
        self.failures: list[Exception] = []

    def charge(self, data: dict[str, Any], meta: dict[str, Any]) -> None:
        if self.failures:
            raise self.failures.pop()
        self.charges.append(data["payment_id"])

    def deliver(self, *bodies: str) -> None:
        for body in bodies:
            self.app.transport.publish("payments", body)
        while self.app.consume(max_messages=100, timeout=0.01, handle_signals=False):
            pass


@pytest.fixture
def envelope() -> dict[str, Any]:
    return EnvelopeCodec.make(URN, {"payment_id": "pay_7f3a", "amount": 4200}, queue="payments")


@pytest.fixture
def body(envelope: dict[str, Any]) -> str:
    return EnvelopeCodec.encode(envelope)


def test_one_envelope_delivered_twice_byte_for_byte_is_charged_once(store: eo.Store, body: str) -> None:
    shop = Shop(seen_set(store, scope="payments"))
    shop.deliver(body, body)
    shop.deliver(body)
    assert shop.charges == ["pay_7f3a"]


def test_another_consumer_process_knows_what_the_first_one_did(tmp_path: Path, body: str) -> None:
    charges = []
    for _ in range(2):
        with eo.connect(f"sqlite:///{tmp_path / 'shop.db'}") as store:
            shop = Shop(seen_set(store, scope="payments"))
            shop.deliver(body)
            charges += shop.charges
    assert charges == ["pay_7f3a"]


def test_two_messages_with_the_same_data_are_two_charges(store: eo.Store, body: str) -> None:
    shop = Shop(seen_set(store, scope="payments"))
    again = EnvelopeCodec.encode(EnvelopeCodec.make(URN, {"payment_id": "pay_7f3a", "amount": 4200}, queue="payments"))
    shop.deliver(body, again)
    assert shop.charges == ["pay_7f3a", "pay_7f3a"]


def test_a_handler_that_fails_is_not_recorded_and_its_redelivery_runs(
    store: eo.Store, envelope: dict[str, Any], body: str
) -> None:
    seen = seen_set(store, scope="payments")
    shop = Shop(seen, max_attempts=1)
    shop.failures.append(RuntimeError("card reader on fire"))
    shop.deliver(body)
    assert not seen.seen(envelope["meta"]["id"])
    shop.deliver(body, body)
    assert shop.charges == ["pay_7f3a"]
    assert seen.seen(envelope["meta"]["id"])


def test_a_forgotten_id_runs_again_and_is_then_known_again(
    store: eo.Store, envelope: dict[str, Any], body: str
) -> None:
    seen = seen_set(store, scope="payments")
    shop = Shop(seen)
    shop.deliver(body)
    seen.forget(envelope["meta"]["id"])
    seen.forget("never seen")
    shop.deliver(body, body)
    assert shop.charges == ["pay_7f3a", "pay_7f3a"]


def test_two_scopes_do_not_hide_a_message_from_each_other(store: eo.Store, body: str) -> None:
    charges, mails = Shop(seen_set(store, scope="payments")), Shop(seen_set(store, scope="mails"))
    for consumer in (charges, mails, charges, mails):
        consumer.deliver(body)
    assert (charges.charges, mails.charges) == (["pay_7f3a"], ["pay_7f3a"])


def test_it_is_what_the_package_asks_for(store: eo.Store) -> None:
    seen = seen_set(store, scope="payments")
    assert isinstance(seen, idempotency.IdempotencyStore)
    assert [seen.remember("m1"), seen.remember("m1"), seen.forget("m1")] == [None, None, None]
    assert seen.seen("m1") is False


def test_a_store_that_does_not_answer_is_a_retry_and_never_an_ack(body: str) -> None:
    """F36: fail closed. The message ends in the dead-letter queue, and nothing was charged without a look."""
    with eo.connect("redis://127.0.0.1:1/0?timeout=1s") as store:
        shop = Shop(seen_set(store, scope="payments"), max_attempts=2, dead_letter=True)
        shop.deliver(body)
        dead = shop.app.transport.pop("payments.dlq", timeout=0)
        assert shop.charges == []
        assert dead is not None
        assert EnvelopeCodec.decode(dead.body)["dead_letter"]["exception"] == "StoreUnavailable"
        with pytest.raises(eo.StoreUnavailable):
            seen_set(store, scope="payments").remember("m1")


def test_an_id_is_known_for_its_retention() -> None:
    with eo.connect("memory://") as store:
        seen_set(store, scope="payments", retention="30d").remember("m1")
        record = store.get("payments", "m1")
    assert record is not None
    assert record.expires_at is not None
    assert (record.state, record.expires_at - record.changed_at) == ("done", 30 * 86_400 * 1_000_000)


def test_what_once_holds_in_the_same_scope_is_neither_run_nor_acked() -> None:
    with eo.connect("memory://") as store, ThreadPoolExecutor() as elsewhere:
        seen = seen_set(store, scope="payments")

        @eo.once(store, scope="payments", key="message_id", on_error="doubt")
        def charge(message_id: str) -> None:
            with pytest.raises(eo.InProgress):
                elsewhere.submit(seen.seen, message_id).result()
            raise RuntimeError("nobody knows whether it was charged")

        with pytest.raises(RuntimeError, match="nobody knows"):
            charge("m1")
        with pytest.raises(eo.InDoubt):
            seen.seen("m1")
        seen.remember("m1")
        record = store.get("payments", "m1")
        assert record is not None
        assert record.state == "in_doubt"
        store.resolve("payments", "m1", "done", result={"charged": 4200})
        assert seen.seen("m1")


@pytest.mark.parametrize(
    ("options", "hint"), [({"scope": ""}, "scope="), ({"scope": "s", "retention": 0}, "retention")]
)
def test_a_bad_option_is_refused_at_once(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(eo.ConfigurationError, match=hint):
        seen_set(eo.connect("memory://"), **options)


def test_importing_it_needs_no_babelqueue() -> None:
    code = (
        "import sys; sys.modules['babelqueue'] = None\n"
        "import effectonce as eo; from effectonce.babelqueue.seen_set import seen_set\n"
        "seen = seen_set(eo.connect('memory://'), scope='s'); seen.remember('m1'); print(seen.seen('m1'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")
