"""Django: the middleware on its sync and its async stack, the decorator, and REST framework's views."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.apps import apps
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.test.utils import override_settings
from django.urls import path

import effectonce as eo
from effectonce.core.codec import decode_error
from effectonce.http import Route
from effectonce.integrations.django import Idempotency, IdempotencyMiddleware, IdempotentView, user_id
from effectonce.testing import ManualClock
from tests.harness.faulty_store import FaultyBackend, down

from .conftest import Reply, asgi_exchange, wsgi_exchange

if not settings.configured:
    settings.configure()
if not apps.ready:
    django.setup()


class User:
    is_authenticated = True

    def __init__(self, pk: str) -> None:
        self.pk = pk


class Authentication:
    """Who says who it is, is; who is limited, is answered here."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Any) -> None:
        from asgiref.sync import iscoroutinefunction, markcoroutinefunction

        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        name = request.headers.get("X-User")
        request.user = User(name) if name else None
        if request.headers.get("X-Limited"):
            answer = HttpResponse(status=429)
            return self.later(answer) if asyncio._get_running_loop() else answer
        return self.get_response(request)

    async def later(self, answer: HttpResponse) -> HttpResponse:
        return answer


class ReadsStream(Authentication):
    """Takes the body from the stream, as a middleware that logs or verifies it may do."""

    def __call__(self, request: HttpRequest) -> Any:
        request.read()
        return super().__call__(request)


runs: list[str] = []


def charge(request: HttpRequest) -> HttpResponse:
    runs.append(f"{request.user.pk} {json.loads(request.body)['amount']}")
    response = JsonResponse({"number": len(runs)}, status=201)
    response["Location"] = f"/charges/{len(runs)}"
    response.set_cookie("session", "secret")
    return response


async def acharge(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    runs.append(f"async {eo.current().attempt}")
    return HttpResponse("awaited")


def broken(request: HttpRequest) -> HttpResponse:
    runs.append("broken")
    raise ZeroDivisionError("the bank hung up")


def missing(request: HttpRequest) -> HttpResponse:
    runs.append("missing")
    raise Http404


def stream(request: HttpRequest) -> StreamingHttpResponse:
    runs.append("stream")

    def lines() -> Iterator[bytes]:
        for number in range(3):
            yield b"%d\n" % number

    return StreamingHttpResponse(lines())


async def astream(request: HttpRequest) -> StreamingHttpResponse:
    runs.append("astream")

    async def lines() -> AsyncIterator[bytes]:
        for number in range(3):
            await asyncio.sleep(0)
            yield b"%d\n" % number

    return StreamingHttpResponse(lines(), headers={"Content-Length": "6"})


def uploaded(request: HttpRequest) -> HttpResponse:
    runs.append(request.POST["amount"])
    return HttpResponse(str(request.FILES["slip"].size))


slow_begun, slow_over = threading.Event(), threading.Event()


def slow(request: HttpRequest) -> HttpResponse:
    runs.append("slow")
    slow_begun.set()
    assert slow_over.wait(30)
    return HttpResponse("slow")


urlpatterns = [
    path("charges", charge), path("async", acharge), path("broken", broken), path("missing", missing),
    path("stream", stream), path("astream", astream), path("uploaded", uploaded), path("slow", slow),
]  # fmt: skip


@pytest.fixture(params=["sync", "async"])
def stack(request: pytest.FixtureRequest) -> str:
    runs.clear()
    slow_begun.clear()
    slow_over.clear()
    return str(request.param)


class Shop:
    """A Django project, served by hand."""

    def __init__(self, stack: str, urlconf: Any = None, middleware: bool = True, **effectonce: Any) -> None:
        self.stack = stack
        ours = [f"{IdempotencyMiddleware.__module__}.{IdempotencyMiddleware.__qualname__}"] if middleware else []
        here = sys.modules[__name__]
        self.settings = override_settings(
            ALLOWED_HOSTS=["*"], ROOT_URLCONF=urlconf or here, EFFECTONCE=effectonce, DEBUG=False,
            MIDDLEWARE=[f"{__name__}.Authentication", *ours], USE_I18N=False,
            REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
        )  # fmt: skip
        self.reload()

    def reload(self) -> None:
        """Make the handler, with the middleware that the settings have now."""
        with self.settings:
            self.handler: Any = WSGIHandler() if self.stack == "sync" else ASGIHandler()

    def post(self, url: str = "/charges", body: bytes = b'{"amount": 7}', **headers: str | None) -> Reply:
        with self.settings:
            return self.send(url, body, **headers)

    def send(self, url: str = "/charges", body: bytes = b'{"amount": 7}', **headers: str | None) -> Reply:
        """As `post`, for several threads at once: under the settings already."""
        given = {"x_user": "alice", "idempotency_key": "k", "content_type": "application/json", **headers}
        kept = {name: value for name, value in given.items() if value is not None}
        if self.stack == "sync":
            environ: dict[str, Any] = {f"HTTP_{name.upper()}": value for name, value in kept.items()}
            environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE")
            environ |= {
                "REQUEST_METHOD": "POST", "PATH_INFO": url, "QUERY_STRING": "", "SERVER_NAME": "shop",
                "SERVER_PORT": "80", "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body),
                "wsgi.url_scheme": "http", "wsgi.errors": sys.stderr,
            }  # fmt: skip
            return wsgi_exchange(self.handler, environ)
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in kept.items()]
        raw.append((b"content-length", str(len(body)).encode()))
        scope = {"type": "http", "method": "POST", "path": url, "query_string": b"", "headers": raw}
        return asyncio.run(asgi_exchange(self.handler, scope, [body]))


@pytest.fixture
def shop(stack: str, store: eo.Store) -> Shop:
    return Shop(stack, STORE=store, PRINCIPAL="effectonce.integrations.django.user_id")


def test_a_retry_gets_the_first_response(shop: Shop) -> None:
    first, again = shop.post(), shop.post()
    assert (first.status, first.json) == (201, {"number": 1})
    assert (again.status, again.body, again["location"], again.replayed) == (201, first.body, "/charges/1", True)
    assert (first["set-cookie"] is None, again["set-cookie"]) == (False, None)
    assert runs == ["alice 7"]


def test_each_user_has_its_own_keys_and_nobody_has_none(shop: Shop, events: list[Any]) -> None:
    """F63 and line 7."""
    assert [shop.post(x_user=name).json for name in ("alice", "bob", "alice")] == [
        {"number": 1}, {"number": 2}, {"number": 1},
    ]  # fmt: skip
    events.clear()
    assert shop.post(x_user=None).code == "missing-principal"
    assert (shop.post(x_limited="1").status, events) == (429, [])


def test_refusals_are_problems(stack: str, store: eo.Store) -> None:
    shop = Shop(stack, STORE=store, PRINCIPAL=user_id, DEFAULT=Route(required=True, max_body=20))
    shop.post()
    answers = [shop.post(body=b'{"amount": 8}'), shop.post(idempotency_key='"'), shop.post(idempotency_key=None)]
    answers.append(shop.post(body=b'{"amount": 70000000}'))
    answers.append(shop.post(body=b'{"amount": 700000000}'))
    assert [(each.status, each.code) for each in answers] == [
        (422, "payload-mismatch"), (400, "invalid-key"), (400, "missing-key"), (422, "payload-mismatch"),
        (413, "payload-too-large"),
    ]  # fmt: skip
    assert len(runs) == 1


def test_what_a_view_raises_is_in_doubt_and_what_it_could_not_find_is_replayed(shop: Shop) -> None:
    assert (shop.post("/broken").status, shop.post("/broken").code) == (500, "in-doubt")
    assert (shop.post("/missing").status, shop.post("/missing").replayed) == (404, True)
    assert runs == ["broken", "missing"]


def test_a_record_in_doubt_names_what_its_view_raised(shop: Shop, store: eo.Store) -> None:
    shop.post("/broken")
    (record,) = store.list().records
    error = decode_error(record.error)
    assert (error.type, error.message) == ("builtins:ZeroDivisionError", "the bank hung up")
    assert "in broken" in error.frames[-1]


def test_views_of_the_other_colour_and_streams(shop: Shop) -> None:
    paths = ["/async", "/stream"] + (["/astream"] if shop.stack == "async" else [])
    for url, body in zip(paths, [b"awaited", b"0\n1\n2\n", b"0\n1\n2\n"], strict=False):
        first, again = shop.post(url), shop.post(url)
        assert (first.body, again.body, again.replayed) == (body, body, True)
    assert len(runs) == len(paths)


def test_forms_and_files(shop: Shop) -> None:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="amount"\r\n\r\n7\r\n--b\r\nContent-Disposition: form-data; '
        b'name="slip"; filename="s"\r\n\r\n' + b"x" * 1000 + b"\r\n--b--\r\n"
    )
    form = "multipart/form-data; boundary=b"
    assert [shop.post("/uploaded", body, content_type=form).body for _ in range(2)] == [b"1000"] * 2
    assert shop.post("/uploaded", body.replace(b"xx", b"yy", 1), content_type=form).status == 422
    assert runs == ["7"]


def test_a_body_that_a_middleware_took_from_the_stream_is_refused(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Its fingerprint would be that of every other body."""
    shop.settings.options["MIDDLEWARE"].insert(0, f"{__name__}.ReadsStream")
    shop.reload()
    for content_type in ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"):
        assert shop.post("/charges", b"amount=7", content_type=content_type).status == 503
    assert runs == []
    assert "let that middleware read request.body" in caplog.text
    assert shop.post("/missing", b"").status == 404, "an empty body is what it is, read or not"


def test_five_at_once_are_one(stack: str) -> None:
    """F15; django-idempotency-key let go of its lock before the view ran: five requests, five executions."""
    shop = Shop(stack, STORE=eo.connect("memory://"), PRINCIPAL=user_id)
    replies: list[Reply] = []
    threads = [threading.Thread(target=lambda: replies.append(shop.send("/slow"))) for _ in range(5)]
    with shop.settings:
        threads[0].start()
        assert slow_begun.wait(30)
        for thread in threads[1:]:
            thread.start()
        for thread in threads[1:]:
            thread.join(30)
        slow_over.set()
        threads[0].join(30)
    assert sorted(reply.status for reply in replies) == [200, 409, 409, 409, 409]
    assert (runs, shop.post("/slow").replayed) == (["slow"], True)


def test_a_response_that_could_not_be_recorded_is_not_sent(stack: str, clock: ManualClock) -> None:
    """Line 20."""
    backend = FaultyBackend(clock)
    shop = Shop(stack, STORE=eo.Store(backend, sweep_every=None), PRINCIPAL=user_id)
    backend.before = lambda op: down(op) if getattr(op, "state", "") == "done" else None
    refused = shop.post()
    assert (refused.status, refused.code, refused["retry-after"]) == (503, "store-unavailable", "1")


def test_a_stream_whose_client_leaves_is_done_to_its_end(store: eo.Store) -> None:
    shop = Shop("sync", STORE=store, PRINCIPAL=user_id)
    django = shop.handler

    def leaving(environ: Any, start_response: Any) -> list[bytes]:
        result = django(environ, start_response)
        first = next(iter(result))
        result.close()
        return [first]

    shop.handler = leaving
    assert shop.post("/stream").body == b"0\n"
    shop.handler = django
    assert shop.post("/stream").body == b"0\n1\n2\n"


@pytest.mark.parametrize(
    "wrong", [None, {}, {"STORE": "memory://"}, {"STORE": "memory://", "PRINCIPAL": "*", "principal": 1}]
)
def test_a_wrong_setting_is_told_at_once(wrong: Any) -> None:
    with override_settings(EFFECTONCE=wrong), pytest.raises(eo.ConfigurationError, match="EFFECTONCE"):
        IdempotencyMiddleware(lambda request: HttpResponse())


def test_the_store_may_be_a_url_or_a_path() -> None:
    for given in ("memory://", f"{__name__}.a_store"):
        with override_settings(EFFECTONCE={"STORE": given, "PRINCIPAL": "*"}):
            IdempotencyMiddleware(lambda request: HttpResponse())


a_store = eo.connect("memory://")


# -- one view


class OneView:
    """URLs of views that carry the guard themselves."""

    def __init__(self, store: eo.Store) -> None:
        idempotent = Idempotency(store, principal=user_id, required=True)
        raising = Idempotency(store, principal=user_id, errors="raise")

        @idempotent
        def view(request: HttpRequest) -> HttpResponse:
            if "amount" not in json.loads(request.body):
                raise PermissionDenied
            return charge(request)

        @idempotent
        async def aview(request: HttpRequest) -> HttpResponse:
            return await acharge(request)

        @raising
        def typed(request: HttpRequest) -> HttpResponse:
            return charge(request)

        def caught(request: HttpRequest) -> HttpResponse:
            try:
                return typed(request)
            except eo.PayloadMismatch as error:
                return HttpResponse(error.code, status=418)

        self.urlpatterns = [path("view", view), path("aview", aview), path("typed", caught)]


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_error_of_a_guarded_view_reaches_its_caller(store: eo.Store, is_async: bool) -> None:
    """As the error of any view: other decorators, and Django's handlers, see what was raised."""

    def fail(request: HttpRequest) -> HttpResponse:
        raise ZeroDivisionError("of the view")

    async def fail_async(request: HttpRequest) -> HttpResponse:
        raise ZeroDivisionError("of the view")

    view: Any = Idempotency(store, principal="*")(fail_async if is_async else fail)
    request = RequestFactory().post("/view", b"{}", "application/json", HTTP_IDEMPOTENCY_KEY='"k1"')
    with pytest.raises(ZeroDivisionError, match="of the view"):
        await view(request) if is_async else await asyncio.to_thread(view, request)


async def test_a_cancelled_request_is_cancelled_for_its_caller_and_done_for_its_retry(store: eo.Store) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    @Idempotency(store, principal="*")
    async def view(request: HttpRequest) -> HttpResponse:
        begun.set()
        await over.wait()
        return HttpResponse("receipt")

    request = RequestFactory().post("/view", b"{}", "application/json", HTTP_IDEMPOTENCY_KEY='"k1"')
    task = asyncio.create_task(view(request))
    await asyncio.wait_for(begun.wait(), 10)
    task.cancel()
    over.set()
    await asyncio.wait([task])
    assert task.cancelled()
    replay = await view(request)
    assert (replay.content, replay.headers["Idempotent-Replayed"]) == (b"receipt", "true")


def test_the_decorator_guards_one_view(stack: str, store: eo.Store) -> None:
    shop = Shop(stack, OneView(store), middleware=False)
    for url in ("/view", "/aview"):
        assert [shop.post(url).replayed for _ in range(2)] == [False, True]
        assert shop.post(url, idempotency_key=None).code == "missing-key"
    assert [(shop.post("/view", b"{}", idempotency_key="k2").status) for _ in range(2)] == [403, 403]
    assert len(runs) == 2


def test_the_decorator_may_raise_the_typed_errors(stack: str, store: eo.Store) -> None:
    shop = Shop(stack, OneView(store), middleware=False)
    assert shop.post("/typed").status == 201
    refused = shop.post("/typed", b'{"amount": 8}')
    assert (refused.status, refused.body) == (418, b"payload-mismatch")


# -- ATOMIC_REQUESTS


@pytest.fixture
def ledger(tmp_path: Path, unique_name: str) -> Iterator[str]:
    """A database that Django opens a transaction on for every request."""
    told = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.db"), "ATOMIC_REQUESTS": True}
    connections.settings.update(connections.configure_settings({"default": {}, unique_name: told}))
    with connections[unique_name].cursor() as cursor:
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
        cursor.execute("CREATE TABLE orders (parent integer REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)")
    yield unique_name
    connections[unique_name].close()
    del connections.settings[unique_name]


class AtomicViews:
    """A view whose commit fails: what it refers to is not there when the transaction ends."""

    def __init__(self, store: eo.Store, alias: str) -> None:
        from rest_framework.response import Response
        from rest_framework.views import APIView

        def insert() -> str:
            runs.append(str(connections[alias].in_atomic_block))
            with connections[alias].cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES (1)")
            return "placed"

        @Idempotency(store, principal=user_id)
        def decorated(request: HttpRequest) -> HttpResponse:
            return HttpResponse(insert())

        @transaction.non_atomic_requests(using=alias)
        @Idempotency(store, principal=user_id)
        def without(request: HttpRequest) -> HttpResponse:
            runs.append(str(connections[alias].in_atomic_block))
            return HttpResponse("none")

        class Orders(IdempotentView, APIView):
            idempotency = Idempotency(store, principal=lambda request: "alice")
            authentication_classes = ()

            def post(self, request: Any) -> Any:
                return Response(insert())

        self.urlpatterns = [
            path("decorated", decorated), path("rest", Orders.as_view()), path("without", without),
            path("rest-without", transaction.non_atomic_requests(using=alias)(Orders.as_view())),
        ]  # fmt: skip


@pytest.mark.parametrize("url", ["/decorated", "/rest"])
def test_f05_what_is_recorded_is_committed_before(store: eo.Store, ledger: str, url: str) -> None:
    """With ATOMIC_REQUESTS Django commits when the view has returned: a guard inside would be done too early."""
    runs.clear()
    shop = Shop("sync", AtomicViews(store, ledger), middleware=False)
    assert shop.post(url).status == 500
    assert ([record.state for record in store.list().records], runs) == (["in_doubt"], ["True"])
    assert shop.post(url, idempotency_key=None).status == 500
    with connections[ledger].cursor() as cursor:
        cursor.execute("INSERT INTO parents VALUES (1)")
    assert [shop.post(url, idempotency_key="k2").replayed for _ in range(2)] == [False, True]
    with connections[ledger].cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert runs == ["True"] * 3


def test_a_view_without_a_transaction_gets_none(store: eo.Store, ledger: str) -> None:
    runs.clear()
    shop = Shop("sync", AtomicViews(store, ledger), middleware=False)
    shop.post("/without")
    shop.post("/rest-without")
    assert runs == ["False", "False"]


# -- REST framework


class RestViews:
    def __init__(self, store: eo.Store) -> None:
        from rest_framework.authentication import BaseAuthentication
        from rest_framework.exceptions import NotAuthenticated, ValidationError
        from rest_framework.response import Response
        from rest_framework.throttling import BaseThrottle
        from rest_framework.views import APIView

        class Token(BaseAuthentication):
            def authenticate(self, request: Any) -> tuple[User, None]:
                name = request.headers.get("X-Token")
                if name is None:
                    raise NotAuthenticated
                return User(f"token {name}"), None

        class Limit(BaseThrottle):
            def allow_request(self, request: Any, view: Any) -> bool:
                _ = request.data  # a throttle that looks into the body takes it from the stream
                return "X-Limited-There" not in request.headers

        class Charges(IdempotentView, APIView):
            idempotency = Idempotency(store, principal=lambda request: request.user.pk, max_body=100)
            authentication_classes = (Token,)
            throttle_classes = (Limit,)

            def post(self, request: Any) -> Any:
                if request.data["amount"] < 0:
                    raise ValidationError("negative")
                if request.data["amount"] == 0:
                    raise ZeroDivisionError
                runs.append(f"{request.user.pk} {request.data['amount']} {eo.current().attempt}")
                return Response({"number": len(runs)}, status=201)

        self.urlpatterns = [path("charges", Charges.as_view())]


@pytest.fixture
def rest(stack: str, store: eo.Store) -> Shop:
    return Shop(stack, RestViews(store), middleware=False)


def test_rest_framework_authenticates_permits_and_throttles_first(rest: Shop, events: list[Any]) -> None:
    """Line 7, where authentication is the view's own."""
    assert rest.post().status in (401, 403)
    assert rest.post(x_token="a", x_limited_there="1").status == 429
    assert events == []
    assert [rest.post(x_token=name).json for name in ("a", "b", "a")] == [{"number": 1}, {"number": 2}, {"number": 1}]
    assert runs == ["token a 7 1", "token b 7 1"]


def test_rest_framework_replays_what_was_rendered(rest: Shop) -> None:
    first, again = rest.post(x_token="a"), rest.post(x_token="a")
    assert (first.status, again.status, first.body, again.replayed) == (201, 201, again.body, True)
    assert again["content-type"] == "application/json"
    refused = [rest.post(body=b'{"amount": -1}', x_token="a", idempotency_key="k2") for _ in range(2)]
    assert [(each.status, each.replayed) for each in refused] == [(400, False), (400, True)]
    assert rest.post(body=b'{"amount": 8}', x_token="a").code == "payload-mismatch"
    assert rest.post(body=b'{"amount": 7' + b" " * 100 + b"}", x_token="a").code == "payload-too-large"


def test_rest_framework_what_the_view_raises_is_in_doubt(rest: Shop, store: eo.Store) -> None:
    assert rest.post(body=b'{"amount": 0}', x_token="a").status == 500
    assert rest.post(body=b'{"amount": 0}', x_token="a").code == "in-doubt"
