"""Flask: the decorator inside of authentication, and the WSGI middleware around the application."""

from __future__ import annotations

import io
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest
from flask import Flask, Response, abort, g, request, send_file
from werkzeug.test import TestResponse

import effectonce as eo
from effectonce.http import Route
from effectonce.http.wsgi import IdempotencyMiddleware
from effectonce.integrations.flask import answer_problems, idempotent, request_key
from effectonce.testing import ManualClock
from tests.harness.faulty_store import FaultyBackend, down


@pytest.fixture
def app() -> Flask:
    app = Flask("shop")
    app.testing = True

    @app.before_request
    def authenticate() -> None:
        g.user = request.headers.get("X-User")
        if g.user is None:
            abort(401)

    return app


def user() -> str:
    name: str = g.user
    return name


def send(
    app: Flask, path: str = "/charges", key: str | None = "k", user: str | None = "alice", **more: Any
) -> TestResponse:
    headers = {"X-User": user, "Idempotency-Key": key, **more.pop("headers", {})}
    more.setdefault("json", {} if "data" not in more else None)
    return app.test_client().post(path, headers={n: v for n, v in headers.items() if v is not None}, **more)


def replayed(response: TestResponse) -> bool:
    return response.headers.get("Idempotent-Replayed") == "true"


def code(response: TestResponse) -> str:
    assert response.content_type == "application/problem+json"
    return str((response.get_json(force=True))["code"])


@pytest.fixture
def charges(app: Flask, store: eo.Store) -> list[Any]:
    made: list[Any] = []

    @app.post("/charges")
    @idempotent(store, principal=user)
    def charge() -> Any:
        made.append((g.user, request.get_json(), eo.current().attempt))
        response = app.make_response(({"number": len(made)}, 201))
        response.set_cookie("session", "secret")
        response.headers["Location"] = f"/charges/{len(made)}"
        return response

    return made


def test_a_retry_gets_the_first_response(app: Flask, charges: list[Any]) -> None:
    first, again = send(app, json={"amount": 7}), send(app, json={"amount": 7})
    assert (first.status_code, first.get_json()) == (201, {"number": 1})
    assert (again.status_code, again.data, again.headers["Location"]) == (201, first.data, "/charges/1")
    assert ("Set-Cookie" in first.headers, "Set-Cookie" in again.headers) == (True, False)
    assert (replayed(first), replayed(again)) == (False, True)
    assert charges == [("alice", {"amount": 7}, 1)]


def test_each_caller_has_its_own_keys_and_authentication_comes_first(
    app: Flask, charges: list[Any], events: list[Any]
) -> None:
    """F63 and line 7."""
    assert [send(app, user=name).get_json() for name in ("alice", "bob", "alice")] == [
        {"number": 1}, {"number": 2}, {"number": 1},
    ]  # fmt: skip
    events.clear()
    assert (send(app, user=None).status_code, events) == (401, [])


def test_refusals_are_problems(app: Flask, store: eo.Store, charges: list[Any]) -> None:
    @app.post("/small")
    @idempotent(store, principal=user, required=True, max_body=5)
    def small() -> str:
        return "ok"

    send(app, json={"amount": 7})
    answers = [send(app, json={"amount": 8}), send(app, key='"'), send(app, "/small", key=None, data=b"1")]
    answers += [send(app, "/small", data=b"123456"), send(app, "/small", user="")]
    assert [(each.status_code, code(each)) for each in answers] == [
        (422, "payload-mismatch"), (400, "invalid-key"), (400, "missing-key"), (413, "payload-too-large"),
        (401, "missing-principal"),
    ]  # fmt: skip
    assert len(charges) == 1


def test_the_errors_can_be_raised_for_the_applications_own_handlers(app: Flask, store: eo.Store) -> None:
    @app.errorhandler(eo.PayloadMismatch)
    def mismatch(error: eo.PayloadMismatch) -> tuple[str, int]:
        return f"ours: {error.code}", 418

    @app.post("/typed")
    @idempotent(store, principal=user, errors="raise")
    def typed() -> str:
        return "ok"

    send(app, "/typed", json={"amount": 7})
    refused = send(app, "/typed", json={"amount": 8})
    assert (refused.status_code, refused.text) == (418, "ours: payload-mismatch")


def test_what_the_view_aborts_with_or_an_error_handler_answers_is_its_response(app: Flask, store: eo.Store) -> None:
    runs: list[str] = []

    class CardDeclined(Exception):
        pass

    @app.errorhandler(CardDeclined)
    def declined(error: CardDeclined) -> tuple[str, int]:
        return "declined", 402

    @app.post("/pay/<how>")
    @idempotent(store, principal=user)
    def pay(how: str) -> str:
        runs.append(how)
        if how == "abort":
            abort(404)
        raise CardDeclined if how == "declined" else ZeroDivisionError

    assert [(send(app, "/pay/abort").status_code, replayed(send(app, "/pay/abort")))] == [(404, True)]
    assert [(send(app, "/pay/declined").text, replayed(send(app, "/pay/declined")))] == [("declined", True)]
    with pytest.raises(ZeroDivisionError):
        send(app, "/pay/broken")
    assert code(send(app, "/pay/broken")) == "in-doubt"
    assert runs == ["abort", "declined", "broken"]


def test_forms_and_files_also_where_somebody_has_read_them_before(app: Flask, store: eo.Store) -> None:
    runs: list[Any] = []

    @app.before_request
    def peek() -> None:
        if request.path == "/peeked":
            assert request.form

    def upload() -> str:
        runs.append(request.form["amount"])
        return str(len(request.files["slip"].read()))

    for path in ("/form", "/peeked"):
        app.post(path, endpoint=path)(idempotent(store, principal=user)(upload))
    body = (
        b'--b\r\nContent-Disposition: form-data; name="amount"\r\n\r\n7\r\n--b\r\nContent-Disposition: form-data; '
        b'name="slip"; filename="s"\r\n\r\n' + b"x" * 1000 + b"\r\n--b--\r\n"
    )
    for path in ("/form", "/peeked"):
        about: dict[str, Any] = {"data": body, "content_type": "multipart/form-data; boundary=b"}
        assert [send(app, path, **about).text for _ in range(2)] == ["1000", "1000"]
        other = {**about, "data": body.replace(b"xxx", b"yyy", 1)}
        assert send(app, path, **other).status_code == 422
    assert runs == ["7", "7"]


def test_a_chunked_body_over_the_cap_is_refused_and_never_cut(app: Flask, store: eo.Store) -> None:
    """Line 8: werkzeug cuts off a body without a length at its limit, and the view would run on a part of it."""
    bodies: list[bytes] = []

    @app.post("/notes")
    @idempotent(store, principal=user, max_body=8)
    def note() -> str:
        bodies.append(request.get_data())
        return "noted"

    def chunked(key: str, body: bytes) -> TestResponse:
        ends = {"wsgi.input_terminated": True}
        return send(app, "/notes", key, input_stream=io.BytesIO(body), data=None, environ_overrides=ends)

    assert code(chunked("k1", b"123456789")) == "payload-too-large"
    assert (chunked("k2", b"12345678").status_code, bodies) == (200, [b"12345678"])


def test_streams_files_and_async_views(app: Flask, store: eo.Store) -> None:
    runs: list[str] = []

    @app.post("/stream")
    @idempotent(store, principal=user)
    def stream() -> Response:
        runs.append("stream")

        def lines() -> Iterator[str]:
            for number in range(3):
                yield f"{number}\n"

        return Response(lines())

    @app.post("/file")
    @idempotent(store, principal=user)
    def file() -> Response:
        runs.append("file")
        return send_file(io.BytesIO(b"\x00pdf"), mimetype="application/pdf")

    @app.post("/async")
    @idempotent(store, principal=user)
    async def asynchronous() -> str:
        runs.append(f"async {eo.current().attempt}")
        return "awaited"

    for path, expected in (("/stream", b"0\n1\n2\n"), ("/file", b"\x00pdf"), ("/async", b"awaited")):
        for again in (False, True):
            answer = send(app, path)
            assert (answer.data, replayed(answer)) == (expected, again)
    assert runs == ["stream", "file", "async 1"]


def test_a_response_that_could_not_be_recorded_is_not_sent(app: Flask, clock: ManualClock) -> None:
    """Line 20."""
    backend = FaultyBackend(clock)
    store = eo.Store(backend, sweep_every=None)

    @app.post("/charges")
    @idempotent(store, principal=user)
    def charge() -> str:
        return "receipt"

    backend.before = lambda op: down(op) if getattr(op, "state", "") == "done" else None
    refused = send(app)
    assert (refused.status_code, code(refused), refused.headers["Retry-After"]) == (503, "store-unavailable", "1")


def test_other_methods_and_requests_without_a_key_pass(app: Flask, store: eo.Store) -> None:
    runs: list[str] = []

    @app.route("/either", methods=["GET", "POST"])
    @idempotent(store, principal=user)
    def either() -> str:
        runs.append(request.method)
        return "ok"

    for _ in range(2):
        app.test_client().get("/either", headers={"X-User": "alice", "Idempotency-Key": "k"})
        send(app, "/either", key=None)
    assert runs == ["GET", "POST"] * 2


def test_five_at_once_are_one(app: Flask) -> None:
    """F15; django-idempotency-key let go of its lock before the view ran: five requests, five executions."""
    runs: list[int] = []
    store = eo.connect("memory://")
    everyone = threading.Barrier(5)

    @app.post("/charges")
    @idempotent(store, principal=user, wait="30s")
    def charge() -> str:
        runs.append(1)
        return "receipt"

    answers: list[str] = []

    def post() -> None:
        everyone.wait(30)
        answers.append(send(app).text)

    threads = [threading.Thread(target=post) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (runs, answers) == ([1], ["receipt"] * 5)


def test_the_wsgi_middleware_guards_a_whole_application(store: eo.Store) -> None:
    app = Flask("shop")
    runs: list[Any] = []

    @app.post("/charges")
    def charge() -> tuple[dict[str, int], int]:
        runs.append(request.get_json())
        return {"number": len(runs)}, 201

    app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]
        app.wsgi_app,
        store,
        principal=lambda environ: environ.get("HTTP_X_USER"),
        routes={"/charges": Route(required=True)},
    )
    first, again = send(app, json={"amount": 7}), send(app, json={"amount": 7})
    assert (first.data, replayed(again), again.data) == (b'{"number":1}\n', True, first.data)
    assert again.headers["Content-Length"] == first.headers["Content-Length"]
    assert code(send(app, key=None)) == "missing-key"
    assert runs == [{"amount": 7}]


# -- in one commit (mode T)


@pytest.fixture
def shop(app: Flask, tmp_path: Path) -> Flask:
    """Its orders are rows, committed together with their key."""
    app.testing = False
    inbox, path = eo.Inbox(scope="orders"), tmp_path / "shop.db"
    with eo.connect(f"sqlite:///{path}", sweep_every=None) as store, closing(sqlite3.connect(path)) as conn:
        store.migrate()
        conn.execute("CREATE TABLE orders (item TEXT)")
    answer_problems(app)

    @app.post("/orders")
    def order() -> Any:
        def place(conn: sqlite3.Connection, key: str) -> dict[str, Any]:
            conn.execute("INSERT INTO orders VALUES (?)", (request.get_json()["item"],))
            return {"number": conn.execute("SELECT count(*) FROM orders").fetchone()[0]}

        key = request_key(user())
        if "away" in request.headers:
            raise pymysql.err.OperationalError(2003, "Can't connect to MySQL server")
        with closing(sqlite3.connect(path)) as conn, conn:
            return inbox.call(conn, key, place, payload=request.get_json()).value

    @app.post("/calls")
    def call() -> None:
        raise ConnectionError("another service is away")

    return app


def test_in_one_commit_a_retry_gets_the_first_answer(shop: Flask) -> None:
    answers = [send(shop, "/orders", json={"item": "chair"}) for _ in range(2)]
    assert [(answer.status_code, answer.json) for answer in answers] == [(200, {"number": 1})] * 2
    assert send(shop, "/orders", json={"item": "table"}, user="bob").json == {"number": 2}


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"json": {"item": "table"}}, 422, "payload-mismatch"),
        ({"key": None}, 400, "missing-key"),
        ({"headers": {"away": "yes"}}, 503, "store-unavailable"),
    ],
)
def test_in_one_commit_a_refusal_is_a_problem(shop: Flask, options: dict[str, Any], status: int, code: str) -> None:
    assert send(shop, "/orders", json={"item": "chair"}).status_code == 200
    answer = send(shop, "/orders", **{"json": {"item": "chair"}, **options})
    assert (answer.status_code, answer.json["code"] if answer.json else None) == (status, code)
    assert ("Retry-After" in answer.headers) == (status == 503)


def test_other_errors_are_still_those_of_flask(shop: Flask) -> None:
    shop.register_error_handler(404, lambda error: ("not here", 404))
    assert send(shop, "/nothing").text == "not here"
    assert shop.test_client().get("/orders", headers={"X-User": "alice"}).status_code == 405
    answer = send(shop, "/calls")
    assert (answer.status_code, answer.mimetype) == (500, "text/html")
