"""FastAPI, Starlette and Litestar: the key as a dependency, as a middleware of the application, and of one route."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import asyncpg
import psycopg
import pymysql
import pytest
from fastapi import (
    BackgroundTasks,
    Body,
    Depends,
    FastAPI,
    File,
    Form,
    Header,
    HTTPException,
    Request,
    Response,
    UploadFile,
)
from fastapi.responses import JSONResponse, StreamingResponse
from httpx import ASGITransport, AsyncClient
from litestar import Litestar, post
from litestar.middleware import DefineMiddleware
from litestar.params import JSONBody
from pydantic import BaseModel
from sqlalchemy import create_engine
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.routing import Route as StarletteRoute

import effectonce as eo
from effectonce.http import Route, record_key
from effectonce.http.asgi import IdempotencyMiddleware
from effectonce.integrations.fastapi import RESPONSES, Idempotency, answer_problems, request_key
from effectonce.values.awaitables import maybe_await


class Payment(BaseModel):
    amount: int


class Receipt(BaseModel):
    number: int
    amount: int


looked_up: list[str] = []


def current_user(x_user: Annotated[str | None, Header()] = None) -> str:
    looked_up.append("user")
    if x_user is None:
        raise HTTPException(401, "who are you?")
    return x_user


User = Annotated[str, Depends(current_user)]


@pytest.fixture
def app() -> FastAPI:
    return FastAPI()


@pytest.fixture
def idempotency(app: FastAPI, store: eo.Store) -> Idempotency:
    return Idempotency(app, store)


def client(app: Any) -> AsyncClient:
    return AsyncClient(transport=ASGITransport(app), base_url="http://shop")


def key(name: str = "k", user: str | None = "alice") -> dict[str, str]:
    return {"Idempotency-Key": name, **({"X-User": user} if user else {})}


@pytest.fixture
def charges(app: FastAPI, idempotency: Idempotency) -> list[str]:
    made: list[str] = []

    @app.post("/charges", status_code=201, **idempotency.route(principal=current_user))
    async def charge(payment: Payment, user: User, response: Response) -> Receipt:
        if payment.amount > 1000:
            raise HTTPException(402, "not that much")
        made.append(f"{user} {payment.amount}")
        response.headers["Location"] = f"/charges/{len(made)}"
        response.set_cookie("session", "secret")
        return Receipt(number=len(made), amount=payment.amount)

    return made


async def test_a_retry_gets_the_first_response_headers_and_all(app: FastAPI, charges: list[str]) -> None:
    async with client(app) as http:
        first, again = [await http.post("/charges", json={"amount": 7}, headers=key()) for _ in range(2)]
    assert (first.status_code, first.json()) == (201, {"number": 1, "amount": 7})
    assert (again.status_code, again.content, again.headers["location"]) == (201, first.content, "/charges/1")
    assert ("set-cookie" in first.headers, "set-cookie" in again.headers) == (True, False)
    assert again.headers["idempotent-replayed"] == "true"
    assert charges == ["alice 7"]


async def test_each_caller_has_its_own_keys_and_nobody_has_none(
    app: FastAPI, charges: list[str], events: list[Any]
) -> None:
    """F63 and line 7: authentication is a dependency of ours, so it comes first."""
    async with client(app) as http:
        for user in ("alice", "bob"):
            await http.post("/charges", json={"amount": 7}, headers=key(user=user))
        events.clear()
        refused = await http.post("/charges", json={"amount": 7}, headers=key(user=None))
    assert charges == ["alice 7", "bob 7"]
    assert (refused.status_code, refused.json(), events) == (401, {"detail": "who are you?"}, [])


async def test_a_refusal_of_the_endpoints_own_is_replayed(app: FastAPI, charges: list[str]) -> None:
    async with client(app) as http:
        answers = [await http.post("/charges", json={"amount": 5000}, headers=key()) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [402, 402]
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true"]


async def test_requests_without_a_key_pass_unless_one_is_required(
    app: FastAPI, idempotency: Idempotency, charges: list[str]
) -> None:
    @app.post("/refunds", **idempotency.route(principal=eo.GLOBAL, required=True))
    async def refund() -> str:
        return "refunded"

    async with client(app) as http:
        for _ in range(2):
            assert (await http.post("/charges", json={"amount": 1}, headers={"X-User": "alice"})).status_code == 201
        missing = await http.post("/refunds")
        assert (missing.status_code, missing.json()["code"]) == (400, "missing-key")
        assert (await http.post("/refunds", headers=key())).status_code == 200
    assert len(charges) == 2


async def test_what_changes_nothing_passes_also_on_a_guarded_route(app: FastAPI, idempotency: Idempotency) -> None:
    """Line 5: one route for two methods is guarded for the one that changes something."""
    runs: list[str] = []

    @app.api_route("/basket", methods=["GET", "POST"], **idempotency.route(principal=current_user, required=True))
    async def basket(request: Request) -> int:
        runs.append(request.method)
        return len(runs)

    async with client(app) as http:
        assert [(await http.get("/basket", headers=key("k"))).json() for _ in range(2)] == [1, 2]
        assert (await http.get("/basket", headers={"X-User": "alice"})).json() == 3
        assert [(await http.post("/basket", headers=key("k"))).json() for _ in range(2)] == [4, 4]


async def test_wrong_keys_other_payloads_and_large_bodies_are_problems(
    app: FastAPI, idempotency: Idempotency, charges: list[str]
) -> None:
    @app.post("/small", **idempotency.route(principal=eo.GLOBAL, max_body=20))
    async def small(payment: Payment) -> None: ...

    async with client(app) as http:
        await http.post("/charges", json={"amount": 7}, headers=key())
        answers = [
            await http.post("/charges", json={"amount": 7}, headers=key('"')),
            await http.post("/charges", json={"amount": 7}, headers=[*key().items(), ("idempotency-key", "k")]),
            await http.post("/charges", json={"amount": 8}, headers=key()),
            await http.post("/small", json={"amount": 7, "note": "long enough"}, headers=key()),
        ]
    seen = [(answer.status_code, answer.json()["code"], answer.headers["content-type"]) for answer in answers]
    problem = "application/problem+json"
    assert seen == [
        (400, "invalid-key", problem), (400, "invalid-key", problem), (422, "payload-mismatch", problem),
        (413, "payload-too-large", problem),
    ]  # fmt: skip
    assert len(charges) == 1


async def test_beside_the_first_a_request_is_told_to_come_back(app: FastAPI, idempotency: Idempotency) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    @app.post("/slow", **idempotency.route(principal=eo.GLOBAL))
    async def slow() -> str:
        begun.set()
        await over.wait()
        return "done"

    async with client(app) as http:
        first = asyncio.create_task(http.post("/slow", headers=key()))
        await begun.wait()
        beside = await http.post("/slow", headers=key())
        over.set()
        assert (await first).json() == "done"
    assert (beside.status_code, beside.json()["code"], beside.headers["retry-after"]) == (409, "in-progress", "1")


async def test_the_typed_errors_reach_the_applications_own_handlers(app: FastAPI, charges: list[str]) -> None:
    @app.exception_handler(eo.PayloadMismatch)
    async def mismatch(request: Request, error: eo.PayloadMismatch) -> JSONResponse:
        return JSONResponse({"ours": error.code}, status_code=418)

    async with client(app) as http:
        await http.post("/charges", json={"amount": 7}, headers=key())
        refused = await http.post("/charges", json={"amount": 8}, headers=key())
    assert (refused.status_code, refused.json()) == (418, {"ours": "payload-mismatch"})


async def test_what_the_endpoint_raises_is_in_doubt(app: FastAPI, idempotency: Idempotency, store: eo.Store) -> None:
    @app.post("/broken", **idempotency.route(principal=eo.GLOBAL))
    def broken() -> None:
        raise ZeroDivisionError

    async with client(app) as http:
        with pytest.raises(ZeroDivisionError):
            await http.post("/broken", headers=key())
        assert (await http.post("/broken", headers=key())).json()["code"] == "in-doubt"
    assert [record.state for record in store.list().records] == ["in_doubt"]


async def test_forms_uploads_unread_bodies_and_streams(app: FastAPI, idempotency: Idempotency) -> None:
    """However the endpoint reads its body, it is hashed, and the endpoint gets all of it."""
    runs: list[str] = []

    @app.post("/form", **idempotency.route(principal=eo.GLOBAL))
    async def form(amount: Annotated[int, Form()], slip: Annotated[UploadFile, File()]) -> int:
        runs.append("form")
        return len(await slip.read()) + amount

    @app.post("/raw", **idempotency.route(principal=eo.GLOBAL))
    async def raw(request: Request) -> int:
        runs.append("raw")
        return sum([len(chunk) async for chunk in request.stream()])

    @app.post("/unread", **idempotency.route(principal=eo.GLOBAL))
    async def unread() -> StreamingResponse:
        runs.append("unread")

        async def lines() -> AsyncIterator[bytes]:
            for number in range(3):
                yield b"%d\n" % number

        return StreamingResponse(lines())

    boundary = {"Content-Type": "multipart/form-data; boundary=b"}
    body = (
        b'--b\r\nContent-Disposition: form-data; name="amount"\r\n\r\n7\r\n--b\r\nContent-Disposition: form-data; '
        b'name="slip"; filename="s"\r\n\r\n' + b"x" * 100_000 + b"\r\n--b--\r\n"
    )
    async with client(app) as http:
        for replayed in (None, "true"):
            answers = [
                await http.post("/form", content=body, headers={**key(), **boundary}),
                await http.post("/raw", content=b"y" * 200_000, headers=key()),
                await http.post("/unread", content=b"z", headers=key()),
            ]
            assert [answer.text for answer in answers] == ["100007", "200000", "0\n1\n2\n"]
            assert {answer.headers.get("idempotent-replayed") for answer in answers} == {replayed}
        changed = await http.post("/form", content=body.replace(b"7", b"8", 1), headers={**key(), **boundary})
        assert changed.status_code == 422
        assert (await http.post("/unread", content=b"other", headers=key())).status_code == 422
    assert runs == ["form", "raw", "unread"]


async def test_a_client_that_leaves_in_its_body_has_claimed_nothing_and_is_no_500(
    app: FastAPI, idempotency: Idempotency, store: eo.Store
) -> None:
    """Whether FastAPI or the guard reads the body: nothing is raised that a server would log as a failure."""

    @app.post("/read", **idempotency.route(principal=eo.GLOBAL))
    async def read(amount: Annotated[int, Body()]) -> int:
        raise AssertionError("it ran")

    @app.post("/unread", **idempotency.route(principal=eo.GLOBAL))
    async def unread() -> int:
        raise AssertionError("it ran")

    for path in ("/read", "/unread"):
        leaving = iter([{"type": "http.request", "body": b"1", "more_body": True}, {"type": "http.disconnect"}])
        sent: list[Any] = []

        async def receive(parts: Any = leaving) -> Any:
            return next(parts)

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        headers = [(b"idempotency-key", b"k"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        await app(scope, receive, send)
        assert sent[0]["status"] == 400
    assert store.list().records == []


async def test_sync_endpoints_and_background_tasks(app: FastAPI, idempotency: Idempotency) -> None:
    mails: list[str] = []

    @app.post("/order", **idempotency.route(principal=eo.GLOBAL))
    def order(tasks: BackgroundTasks) -> str:
        tasks.add_task(mails.append, eo.current().provider_key("mail"))
        return "ordered"

    async with client(app) as http:
        assert [(await http.post("/order", headers=key())).json() for _ in range(2)] == ["ordered"] * 2
    assert len(mails) == 1


async def test_the_schema_documents_the_header_and_the_problems(app: FastAPI, idempotency: Idempotency) -> None:
    @app.post(
        "/charges", **idempotency.route(principal=current_user, required=True, responses={404: {"description": "no"}})
    )
    async def charge(payment: Payment) -> Receipt:
        raise NotImplementedError

    @app.post("/optional", **idempotency.route(principal=eo.GLOBAL, max_key=64))
    async def optional() -> None: ...

    async with client(app) as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
    operation = paths["/charges"]["post"]
    (header,) = [each for each in operation["parameters"] if each["name"] == "Idempotency-Key"]
    assert (header["in"], header["required"], header["schema"]["maxLength"]) == ("header", True, 255)
    assert header["schema"]["minLength"] == 1
    assert {"200", "400", "404", "409", "413", "422", "503"} == set(operation["responses"])
    assert "application/problem+json" in operation["responses"]["409"]["content"]
    assert "Retry-After" in operation["responses"]["503"]["headers"]
    (optional_header,) = paths["/optional"]["post"]["parameters"]
    assert (optional_header["required"], optional_header["schema"]["maxLength"]) == (False, 64)


async def test_without_its_middleware_a_key_is_refused_and_not_ignored(store: eo.Store) -> None:
    """On an application that is only mounted, nothing could be recorded."""
    mounted, served = FastAPI(), FastAPI()
    other = Idempotency(FastAPI(), store)

    @mounted.post("/charges", **other.route(principal=eo.GLOBAL))
    async def charge() -> None:
        raise AssertionError("it ran")

    served.mount("/v1", mounted)
    async with client(served) as http:
        with pytest.raises(eo.ConfigurationError, match="of its own"):
            await http.post("/v1/charges", headers=key())


@pytest.mark.parametrize("of", ["the outer one", "its own"])
async def test_an_application_that_is_mounted_has_a_guard_of_its_own(app: FastAPI, store: eo.Store, of: str) -> None:
    """It answers its exceptions itself: with the outer one's guard a replay would be a 500, so nothing runs."""
    mounted, runs = FastAPI(), []
    guard = Idempotency(app if of == "the outer one" else mounted, store)

    @mounted.post("/charges", **guard.route(principal=current_user))
    async def charge() -> int:
        runs.append(1)
        return len(runs)

    app.mount("/shop", mounted)
    async with client(app) as http:
        if of == "the outer one":
            with pytest.raises(RuntimeError) as raised:  # Starlette's, of an exception that two applications see
                await http.post("/shop/charges", headers=key())
            assert isinstance(raised.value.__cause__, eo.ConfigurationError)
            assert (runs, store.list().records) == ([], [])
            return
        answers = [await http.post("/shop/charges", headers=key()) for _ in range(2)]
    assert [(each.text, "idempotent-replayed" in each.headers) for each in answers] == [("1", False), ("1", True)]


async def test_a_route_that_is_guarded_twice_is_a_bug_that_is_told(app: FastAPI, idempotency: Idempotency) -> None:
    once, twice = idempotency.route(principal=eo.GLOBAL), idempotency.route(principal=eo.GLOBAL)

    @app.post("/charges", dependencies=[*once["dependencies"], *twice["dependencies"]])
    async def charge() -> None:
        raise AssertionError("it ran")

    async with client(app) as http:
        assert (await http.post("/charges", headers=key())).status_code == 503


# -- mode T


async def test_the_key_of_a_request_for_a_transaction_of_ones_own(app: FastAPI) -> None:
    """The example runs it on PostgreSQL; here: what it stands for, what it refuses, how it is documented."""
    answer_problems(app, "https://shop.example/docs")

    @app.post("/orders", responses=RESPONSES)
    def order(key: Annotated[str, Depends(request_key(current_user))]) -> str:
        return key

    async with client(app) as http:
        keys = [(await http.post("/orders", headers=key(user=user))).json() for user in ("alice", "bob", "alice")]
        assert keys[0] == keys[2] == record_key("alice", "POST", "/orders", "k") != keys[1]
        nobody = {"Idempotency-Key": "k", "X-User": ""}
        refused = [await http.post("/orders", headers=sent) for sent in ({"X-User": "alice"}, key('"'), nobody)]
        assert [(each.status_code, each.json()["code"]) for each in refused] == [
            (400, "missing-key"), (400, "invalid-key"), (401, "missing-principal"),
        ]  # fmt: skip
        assert refused[0].json()["type"] == "https://shop.example/docs#missing-key"
        assert (await http.post("/orders", headers=key(user=None))).status_code == 401
        operation = (await http.get("/openapi.json")).json()["paths"]["/orders"]["post"]
    assert "Idempotency-Key" in {each["name"] for each in operation["parameters"]}


def refused_port() -> int:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return int(closed.getsockname()[1])


def open_sqlalchemy(port: int) -> None:
    with create_engine(f"postgresql+psycopg://ada@127.0.0.1:{port}/shop").begin():
        raise AssertionError("it connected")


async def open_asyncpg(port: int) -> None:
    await asyncpg.connect(f"postgresql://ada@127.0.0.1:{port}/shop")


OPENERS: dict[str, Callable[[int], Any]] = {
    "psycopg": lambda port: psycopg.connect(f"postgresql://ada@127.0.0.1:{port}/shop"),
    "pymysql": lambda port: pymysql.connect(host="127.0.0.1", port=port, user="ada"),
    "sqlalchemy": open_sqlalchemy,
    "asyncpg": open_asyncpg,
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("place", ["handler", "dependency"])
async def test_a_database_that_is_away_is_503_with_retry_after_in_mode_t(app: FastAPI, opener: str, place: str) -> None:
    """As the middleware answers it. It would be a 500, which clients do not repeat."""
    answer_problems(app)
    port = refused_port()

    async def connection() -> Any:
        if place == "dependency":
            await maybe_await(OPENERS[opener](port))

    @app.post("/orders", responses=RESPONSES)
    async def order(
        key: Annotated[str, Depends(request_key(current_user))],
        conn: Any = Depends(connection),  # noqa: B008 - a local name
    ) -> None:
        await maybe_await(OPENERS[opener](port))

    async with client(app) as http:
        answer = await http.post("/orders", headers=key())
    assert (answer.status_code, answer.json()["code"]) == (503, "store-unavailable")
    assert answer.headers["retry-after"] == "1"


async def test_what_is_not_about_the_database_stays_the_handlers_own_error_in_mode_t(app: FastAPI) -> None:
    answer_problems(app)

    @app.post("/orders")
    def order(key: Annotated[str, Depends(request_key(current_user))]) -> None:
        sqlite3.connect(":memory:").execute("SELECT nonsense FROM")

    async with client(app) as http:
        with pytest.raises(sqlite3.OperationalError, match="incomplete"):
            await http.post("/orders", headers=key())


# -- Starlette


class Header_(AuthenticationBackend):
    """Who says who it is, is."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        name = conn.headers.get("x-user")
        return None if name is None else (AuthCredentials(), SimpleUser(name))


def user(scope: Any) -> str | None:
    return scope["user"].display_name or None


async def test_starlette_with_authentication_outside(store: eo.Store) -> None:
    runs: list[str] = []

    async def charge(request: Any) -> PlainTextResponse:
        runs.append(request.user.username)
        return PlainTextResponse(f"receipt {len(runs)}")

    app = Starlette(
        routes=[StarletteRoute("/charges", charge, methods=["POST"])],
        middleware=[
            Middleware(AuthenticationMiddleware, backend=Header_()),
            Middleware(IdempotencyMiddleware, store=store, principal=user),
        ],
    )
    async with client(app) as http:
        texts = [(await http.post("/charges", headers=key(user=who))).text for who in ("alice", "bob", "alice")]
        nobody = await http.post("/charges", headers=key(user=None))
    assert texts == ["receipt 1", "receipt 2", "receipt 1"]
    assert (runs, nobody.status_code) == (["alice", "bob"], 401)


async def test_starlette_one_route_alone(store: eo.Store) -> None:
    runs: list[int] = []

    async def charge(request: Any) -> PlainTextResponse:
        runs.append(1)
        return PlainTextResponse("receipt")

    guarded = [Middleware(IdempotencyMiddleware, store=store, principal=eo.GLOBAL, default=Route(required=True))]
    app = Starlette(
        routes=[
            StarletteRoute("/charges", charge, methods=["POST"], middleware=guarded),
            StarletteRoute("/other", charge, methods=["POST"]),
        ]
    )
    async with client(app) as http:
        assert (await http.post("/charges")).status_code == 400
        assert (await http.post("/other")).status_code == 200
        for _ in range(2):
            assert (await http.post("/charges", headers=key())).status_code == 200
    assert len(runs) == 2


@pytest.mark.parametrize("where", ["inside", "outside"])
async def test_starlettes_middleware_that_runs_the_application_in_another_task(store: eo.Store, where: str) -> None:
    """BaseHTTPMiddleware on either side: streams, context and the disconnect that it listens for."""
    runs: list[int] = []

    async def charge(request: Any) -> StreamingResponse:
        runs.append(eo.current().attempt)

        async def parts() -> AsyncIterator[str]:
            yield "rec"
            yield "eipt"

        return StreamingResponse(parts())

    async def passing(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    ours = Middleware(IdempotencyMiddleware, store=store, principal=eo.GLOBAL)
    theirs = Middleware(BaseHTTPMiddleware, dispatch=passing)
    app = Starlette(
        routes=[StarletteRoute("/charges", charge, methods=["POST"])],
        middleware=[ours, theirs] if where == "inside" else [theirs, ours],
    )
    async with client(app) as http:
        assert [(await http.post("/charges", headers=key())).text for _ in range(2)] == ["receipt"] * 2
    assert runs == [1]


# -- Litestar


async def test_litestar(store: eo.Store) -> None:
    runs: list[dict[str, int]] = []

    @post("/charges")
    async def charge(data: JSONBody[dict[str, int]]) -> dict[str, int]:
        runs.append(data)
        return {"number": len(runs)}

    @post("/broken")
    async def broken() -> None:
        raise ZeroDivisionError

    app = Litestar(
        [charge, broken], middleware=[DefineMiddleware(IdempotencyMiddleware, store=store, principal=eo.GLOBAL)]
    )
    async with client(app) as http:
        answers = [await http.post("/charges", json={"amount": 7}, headers=key()) for _ in range(2)]
        assert [(answer.status_code, answer.json()) for answer in answers] == [(201, {"number": 1})] * 2
        assert (await http.post("/charges", json={"amount": 8}, headers=key())).status_code == 422
        assert (await http.post("/broken", headers=key())).status_code == 500
        assert (await http.post("/broken", headers=key())).json()["code"] == "in-doubt"
    assert runs == [{"amount": 7}]
    assert store.get("http", record_key(eo.GLOBAL, "POST", "/charges", "k")) is not None
