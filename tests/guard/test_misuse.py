"""What is written wrongly is refused where it is written, by an error that shows the right form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

import effectonce as eo
from effectonce.babelqueue.seen_set import seen_set
from effectonce.http.wsgi import IdempotencyMiddleware
from effectonce.integrations.celery import guard_tasks
from effectonce.integrations.taskiq import IdempotencyMiddleware as TaskiqMiddleware

URL = "postgresql://ada:secret@db/shop?sslkey=secret"


def test_once_without_its_store_shows_the_right_form() -> None:
    with pytest.raises(
        eo.ConfigurationError, match=r"above .*charge without its store; write @eo\.once\(store, key=…\)"
    ):

        @eo.once  # type: ignore[arg-type]
        def charge(payment_id: str) -> None: ...


@pytest.mark.parametrize(
    ("call", "right"),
    [
        pytest.param(lambda url: eo.once(url, key="k"), "once(store, …)", id="once"),
        pytest.param(lambda url: eo.block(url, scope="s", key="k"), "block(store, …)", id="block"),
        pytest.param(lambda url: eo.Intents(url, scope="s"), "Intents(store, …)", id="intents"),
        pytest.param(lambda url: eo.Relay(url, eo.connect_broker("memory://")), "Relay(store, …)", id="relay"),
        pytest.param(lambda url: eo.Saga("order", url, input=str), "Saga(name, store, …)", id="saga"),
        pytest.param(lambda url: guard_tasks(Celery(), url), "guard_tasks(app, store, …)", id="celery"),
        pytest.param(lambda url: TaskiqMiddleware(url), "IdempotencyMiddleware(store, …)", id="taskiq"),
        pytest.param(lambda url: seen_set(url, scope="s"), "seen_set(store, …)", id="seen set"),
        pytest.param(
            lambda url: IdempotencyMiddleware(lambda *_: [], url, principal=eo.GLOBAL), "HTTP guard on store", id="http"
        ),
        pytest.param(
            lambda url: eo.Worker(eo.connect_broker("memory://"), store=url), "Worker(…, store=store)", id="worker"
        ),
    ],
)
def test_a_url_in_place_of_a_store_names_connect(call: Callable[[Any], object], right: str) -> None:
    with pytest.raises(eo.ConfigurationError) as raised:
        call(URL)
    assert "store = eo.connect('postgresql://db/shop')" in str(raised.value)
    assert right in str(raised.value)
    assert "secret" not in str(raised.value)
    with pytest.raises(eo.ConfigurationError, match=r"takes a store, such as eo\.connect.*was given int"):
        call(7)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda url: eo.Worker(url, store=eo.connect("memory://")), id="worker"),
        pytest.param(lambda url: eo.Relay(eo.connect("sqlite:///shop.db"), url), id="relay"),
    ],
)
def test_a_url_in_place_of_a_broker_names_connect_broker(call: Callable[[Any], object]) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"broker = eo\.connect_broker\('amqp://mq'\)"):
        call("amqp://ada:secret@mq")


def test_a_url_in_place_of_an_inbox_names_the_inbox() -> None:
    with pytest.raises(eo.ConfigurationError, match=r"inbox= takes an eo\.Inbox\(scope=…\)"):
        eo.Worker(eo.connect_broker("memory://"), inbox=URL, connect=lambda: None)  # type: ignore[arg-type]


def test_a_url_in_place_of_an_inboxs_scope_says_what_an_inbox_works_on() -> None:
    with pytest.raises(eo.ConfigurationError, match=r"an Inbox takes no URL.*eo\.connect\(url\)"):
        eo.Inbox(scope=URL)
    assert eo.Inbox(scope="redis").scope == "redis"


def test_a_url_in_place_of_a_connection_says_what_a_connection_is() -> None:
    with pytest.raises(eo.ConfigurationError, match=r"a URL .* is not a connection.*eo\.connect\(url\) opens a store"):
        eo.Inbox(scope="billing").first(URL, "k")  # type: ignore[call-overload]


def test_only_once_advises_its_own_option_for_a_missing_key(store: eo.Store) -> None:
    """`block` and `Inbox` have no ``on_missing_key=``."""

    @eo.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str | None) -> None: ...

    @eo.once(store, scope="send", key="order.id")
    def send(order: dict[str, str]) -> None: ...

    for call in (lambda: charge(None), lambda: charge(""), lambda: send({})):
        with pytest.raises(eo.MissingKey, match=r"@once\(…, on_missing_key='run'\)"):
            call()
    for key in (None, "", (), ("a", "")):
        with pytest.raises(eo.MissingKey) as raised:
            eo.block(store, scope="mailer", key=key)  # type: ignore[arg-type]
        assert "on_missing_key" not in str(raised.value)


def test_a_workers_handler_without_its_queue_is_refused() -> None:
    """It was accepted, and the function was never called."""
    worker = eo.Worker(eo.connect_broker("memory://"), store=eo.connect("memory://"))
    with pytest.raises(eo.ConfigurationError, match=r"a queue, not .*charge.*write @worker\.handler\('orders'\)"):

        @worker.handler  # type: ignore[arg-type, no-untyped-call]
        def charge(message: eo.Message[Any]) -> None: ...


@pytest.mark.parametrize(
    ("messages", "name"), [({"amount": 1}, "dict"), ([{"amount": 1}], "dict"), ("paid", "str"), (b"{}", "bytes")]
)
def test_a_broker_publishes_messages_only(messages: Any, name: str) -> None:
    with pytest.raises(eo.ConfigurationError, match=rf"a Message, not {name}; write eo\.Message\(type=…, data=…\)"):
        eo.connect_broker("memory://").publish("orders", messages)
