"""Django, mode T: one commit for the key, the view's work and its response."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.apps import apps
from django.conf import settings
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test.utils import override_settings

import effectonce as eo
from effectonce.core.events import Events
from effectonce.integrations.django import transactional

if not settings.configured:
    settings.configure()
if not apps.ready:
    django.setup()

from django.db import connections, transaction

INBOX = eo.Inbox(scope="orders", retention="30d", max_result=2000)


@pytest.fixture
def alias(tmp_path: Path, unique_name: str) -> Iterator[str]:
    told = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.db"), "OPTIONS": {"timeout": 10}}
    connections.settings.update(connections.configure_settings({"default": {}, unique_name: told}))
    with override_settings(ALLOWED_HOSTS=["*"], USE_I18N=False):
        with transaction.atomic(using=unique_name), connections[unique_name].cursor() as cursor:
            cursor.execute("CREATE TABLE orders (name text)")
            INBOX.migrate(connections[unique_name])
        yield unique_name
    connections[unique_name].close()


class Shop:
    """One view that writes an order, then answers as its body says."""

    def __init__(self, alias: str, **options: Any) -> None:
        self.alias = alias
        self.calls = 0
        options.setdefault("principal", lambda request: request.headers.get("X-User"))

        @transactional(INBOX, using=alias, **options)
        def view(request: HttpRequest) -> HttpResponse:
            self.calls += 1
            told = json.loads(request.body)
            with connections[alias].cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES (%s)", [told.get("name", "book")])
            if told.get("cut"):
                connections[alias].connection.close()
                connections[alias].cursor().execute("SELECT 1")
            if told.get("raise"):
                raise ZeroDivisionError
            if told.get("stream"):
                return StreamingHttpResponse(iter([b"x"]))
            status = told.get("status", 201) if self.calls == 1 or not told.get("once") else 201
            response = HttpResponse(b"x" * told.get("size", 3), status=status)
            response["Location"] = f"/orders/{self.calls}"
            response.set_cookie("session", "secret")
            return response

        self.view = view

    def post(self, told: dict[str, Any] | None = None, key: str | None = "k", user: str = "alice", **more: Any) -> Any:
        body = json.dumps(told or {}).encode()
        environ = {
            "REQUEST_METHOD": "POST", "PATH_INFO": "/orders", "wsgi.input": io.BytesIO(body), "SERVER_NAME": "shop",
            "SERVER_PORT": "80", "CONTENT_LENGTH": str(len(body)), "HTTP_X_USER": user, **more,
        }  # fmt: skip
        if key is not None:
            environ["HTTP_IDEMPOTENCY_KEY"] = key
        return self.view(WSGIRequest(environ))

    @property
    def orders(self) -> int:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM orders")
            return int(cursor.fetchone()[0])


def code(response: Any) -> str:
    assert response["Content-Type"] == "application/problem+json"
    return str(json.loads(response.content)["code"])


def test_a_retry_gets_the_response_that_was_committed_with_the_work(alias: str) -> None:
    shop = Shop(alias)
    first, again = shop.post(), shop.post()
    assert (first.status_code, again.status_code, again.content, again["Location"]) == (201, 201, b"xxx", "/orders/1")
    assert (first.cookies["session"].value, again.cookies.get("session")) == ("secret", None)
    assert [each.get("Idempotent-Replayed") for each in (first, again)] == [None, "true"]
    assert {each["Idempotency-Key-Retention"] for each in (first, again)} == {str(30 * 86_400)}
    assert (shop.calls, shop.orders) == (1, 1)


def test_each_caller_has_its_own_keys(alias: str) -> None:
    """F63."""
    shop = Shop(alias)
    assert [shop.post(user=user)["Location"] for user in ("alice", "bob", "alice")] == [
        "/orders/1", "/orders/2", "/orders/1",
    ]  # fmt: skip
    assert code(shop.post(user="")) == "missing-principal"


@pytest.mark.parametrize("status", [500, 503, 401, 429])
def test_what_failed_is_rolled_back_and_the_retry_runs(alias: str, status: int) -> None:
    """Line 14: the work rolled back, so a rerun is right, and nothing is ever in doubt."""
    shop = Shop(alias)
    told = {"status": status, "once": True}
    assert (shop.post(told).status_code, shop.orders) == (status, 0)
    assert (shop.post(told).status_code, shop.orders, shop.calls) == (201, 1, 2)


def test_the_inbox_counts_a_response_as_first_when_it_is_committed(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[eo.Event] = []
    monkeypatch.setattr(INBOX, "events", Events((events.append,)))
    shop = Shop(alias)
    shop.post({"status": 503, "once": True})
    assert [event.kind for event in events] == ["released"]
    with transaction.atomic(using=alias):  # as ATOMIC_REQUESTS opens it
        shop.post({"status": 503, "once": True})
        assert [event.kind for event in events] == ["released"]
    shop.post({"status": 503, "once": True})
    assert [event.kind for event in events] == ["released", "first", "replayed"]


def test_what_raised_is_rolled_back_and_raised(alias: str) -> None:
    shop = Shop(alias)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            shop.post({"raise": True})
    assert (shop.orders, shop.calls) == (0, 2)


def test_a_deterministic_refusal_is_replayed(alias: str) -> None:
    shop = Shop(alias)
    assert [shop.post({"status": 422}).status_code for _ in range(2)] == [422, 422]
    assert shop.calls == 1


def test_refusals_are_problems(alias: str) -> None:
    shop = Shop(alias, required=True, max_body=40)
    shop.post()
    assert code(shop.post({"name": "pen"})) == "payload-mismatch"
    assert code(shop.post(key=None)) == "missing-key"
    assert code(shop.post(key='"')) == "invalid-key"
    assert code(shop.post({"name": "p" * 40})) == "payload-too-large"
    assert shop.orders == 1


@pytest.fixture
def away(unique_name: str) -> Iterator[str]:
    """The alias of a PostgreSQL that does not answer."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    told = {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": str(port), "NAME": "shop"}
    connections.settings.update(connections.configure_settings({"default": {}, unique_name: told}))
    with override_settings(ALLOWED_HOSTS=["*"], USE_I18N=False):
        yield unique_name


def test_a_database_that_is_away_is_503_with_retry_after(away: str) -> None:
    """As the middleware answers it. It would be a 500, which clients do not repeat."""
    shop = Shop(away)
    answer = shop.post()
    assert (answer.status_code, code(answer), answer["Retry-After"], shop.calls) == (503, "store-unavailable", "1", 0)
    with pytest.raises(eo.StoreUnavailable):
        Shop(away, errors="raise").post()


def test_a_database_that_goes_away_while_the_view_works_is_503_too(alias: str) -> None:
    shop = Shop(alias)
    answer = shop.post({"cut": True, "once": True})
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")
    connections[alias].close()
    assert (shop.post({"cut": False}, key="k2").status_code, shop.orders) == (201, 1)


def test_a_response_over_the_cap_is_done_without_its_body(alias: str) -> None:
    """F18."""
    shop = Shop(alias)
    assert len(shop.post({"size": 5000}).content) == 5000
    assert (code(shop.post({"size": 5000})), shop.orders) == ("result-not-stored", 1)


def test_a_stream_is_refused_and_rolled_back(alias: str) -> None:
    shop = Shop(alias)
    assert (shop.post({"stream": True}).status_code, shop.orders) == (503, 0)


def test_without_a_key_it_is_a_transaction_all_the_same(alias: str) -> None:
    shop = Shop(alias)
    for _ in range(2):
        shop.post(key=None)
    with pytest.raises(ZeroDivisionError):
        shop.post({"raise": True}, key=None)
    assert shop.orders == 2


def test_the_errors_can_be_raised(alias: str) -> None:
    shop = Shop(alias, errors="raise")
    shop.post()
    with pytest.raises(eo.PayloadMismatch):
        shop.post({"name": "pen"})
