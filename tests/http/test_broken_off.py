"""F73: a response that broke off is never recorded as done, whatever stands between the guard and the route.

Starlette's `BaseHTTPMiddleware` sends the end of a body that broke off like that of a whole one, and raises afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount
from starlette.routing import Route as StarletteRoute

import effectonce as eo
from effectonce.http import Route
from effectonce.http.asgi import IdempotencyMiddleware
from effectonce.integrations.fastapi import Idempotency
from tests.harness.web import web

from .conftest import Answer, Stack
from .test_asgi import Client, guarded, request_scope

Endpoint = Callable[[Request], Any]
Dispatch = Callable[[Request, Any], Any]
MakeApp = Callable[..., Any]


async def pass_on(request: Request, call_next: Any) -> Any:
    return await call_next(request)


async def pass_on_again(request: Request, call_next: Any) -> Any:
    response = await call_next(request)
    response.headers["x-seen"] = "yes"
    return response


def added(store: eo.Store, endpoint: Endpoint, dispatch: Dispatch = pass_on, **route: Any) -> Any:
    """The guard is a middleware of the application, outside of two others."""
    app = Starlette(routes=[StarletteRoute("/charges", endpoint, methods=["POST"])])
    app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on_again)
    app.add_middleware(IdempotencyMiddleware, store=store, principal=eo.GLOBAL, default=Route(**route))
    return app


def mounted(store: eo.Store, endpoint: Endpoint, dispatch: Dispatch = pass_on, **route: Any) -> Any:
    """The guard is around an application, and the middleware belongs to one that is mounted in it."""
    inner = Starlette(
        routes=[StarletteRoute("/", endpoint, methods=["POST"])],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=dispatch)],
    )
    outer = Starlette(routes=[Mount("/charges", inner)])
    return guarded(outer, store, Route(**route))


def dependency(store: eo.Store, endpoint: Endpoint, dispatch: Dispatch = pass_on, **route: Any) -> Any:
    """The guard is a dependency of the route."""
    app = FastAPI()
    app.middleware("http")(dispatch)
    idempotency = Idempotency(app, store)

    @app.post("/charges", **idempotency.route(principal=eo.GLOBAL, **route))
    async def charge(request: Request) -> Any:
        return await endpoint(request)

    return app


LAYOUTS = pytest.mark.parametrize("make_app", [added, mounted, dependency])
ON_ERROR = pytest.mark.parametrize(
    ("on_error", "state"), [("doubt", "in_doubt"), ("release", "free"), ("replay", "done")]
)


def scope_of(make_app: MakeApp) -> dict[str, Any]:
    return request_scope(path="/charges/" if make_app is mounted else "/charges")


def states(store: eo.Store) -> list[str]:
    return [record.state for record in store.list().records]


def has_end(client: Client) -> bool:
    """Whether the client was told that it has the whole response."""
    return any(m["type"] == "http.response.body" and not m.get("more_body", False) for m in client.sent)


# -- the stream raises


@LAYOUTS
@ON_ERROR
@pytest.mark.parametrize("parts", [0, 2])
async def test_a_stream_that_raises_behind_a_middleware(
    store: eo.Store, make_app: MakeApp, on_error: Any, state: str, parts: int
) -> None:
    runs: list[int] = []

    async def charge(request: Request) -> Any:
        async def receipt() -> AsyncIterator[bytes]:
            runs.append(1)
            for _ in range(parts):
                yield b"part "
            raise ZeroDivisionError("in the middle of the response")

        return StreamingResponse(receipt())

    app = make_app(store, charge, on_error=on_error)
    client = Client(app, scope=scope_of(make_app))
    with pytest.raises(ZeroDivisionError):
        await client.exchange()
    assert states(store) == [state]
    # Where nothing was sent yet, Starlette may answer with a 500.
    assert not has_end(client) or client.sent[0]["status"] == 500
    if on_error == "doubt":
        retry = await Client(app, scope=scope_of(make_app)).exchange()
        assert (retry.status, retry.code, runs) == (409, "in-doubt", [1])


@LAYOUTS
async def test_a_middleware_that_made_a_new_response_of_one_that_broke_off(store: eo.Store, make_app: MakeApp) -> None:
    """It cannot know that what it has read is not the whole body: the Content-Length of its own response proves
    nothing."""

    async def charge(request: Request) -> Any:
        async def receipt() -> AsyncIterator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        return StreamingResponse(receipt())

    async def read_body(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        return Response(b"".join([part async for part in response.body_iterator]))

    client = Client(make_app(store, charge, dispatch=read_body), scope=scope_of(make_app))
    with pytest.raises(ZeroDivisionError):
        await client.exchange()
    assert states(store) == ["in_doubt"]


@LAYOUTS
async def test_a_middleware_that_answers_for_a_route_that_raised(store: eo.Store, make_app: MakeApp) -> None:
    """No response was broken off: the middleware's is the only one, and it is whole."""
    runs: list[int] = []

    async def charge(request: Request) -> Any:
        runs.append(1)
        raise LookupError

    async def answer(request: Request, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except LookupError:
            return JSONResponse({"error": "no such card"}, 404)

    app = make_app(store, charge, dispatch=answer)
    replies = [await Client(app, scope=scope_of(make_app)).exchange() for _ in range(2)]
    assert [(reply.status, reply.replayed) for reply in replies] == [(404, False), (404, True)]
    assert (states(store), runs) == (["done"], [1])


# -- the client leaves


@LAYOUTS
@ON_ERROR
async def test_a_client_that_leaves_a_stream_too_long_to_store(
    store: eo.Store, make_app: MakeApp, on_error: Any, state: str
) -> None:
    """Only such a stream is told; the route ends it early, and raises nothing."""

    async def charge(request: Request) -> Any:
        async def receipt() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 600
                if len(client.sent) > 2:
                    client.left.set()

        return StreamingResponse(receipt())

    client = Client(make_app(store, charge, on_error=on_error, max_response=1000), scope=scope_of(make_app))
    with pytest.raises(AssertionError, match="not complete"):
        await client.exchange()
    assert states(store) == [state]


@pytest.mark.parametrize(("length", "state"), [(None, "in_doubt"), (b"1500", "done")])
async def test_an_application_that_ends_its_response_when_its_client_leaves(
    store: eo.Store, length: bytes | None, state: str
) -> None:
    """It may have had more to say, unless a Content-Length says that this is all."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [] if length is None else [(b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * 1400, "more_body": True})
        client.left.set()
        assert await receive() == {"type": "http.disconnect"}
        await send({"type": "http.response.body", "body": b"x" * 100})

    client = Client(guarded(app, store, Route(max_response=1000)))
    with pytest.raises(AssertionError, match="not complete"):
        await client.exchange()
    assert states(store) == [state]


# -- a whole response


@LAYOUTS
async def test_background_work_neither_delays_a_whole_response_nor_changes_it(
    store: eo.Store, make_app: MakeApp
) -> None:
    async def charge(request: Request) -> Any:
        async def receipt() -> AsyncIterator[bytes]:
            yield b"receipt "
            yield b"1"

        async def notify() -> None:
            assert has_end(client)
            assert states(store) == ["done"]
            raise ZeroDivisionError

        return StreamingResponse(receipt(), background=BackgroundTask(notify))

    app = make_app(store, charge)
    client = Client(app, scope=scope_of(make_app))
    with pytest.raises(ZeroDivisionError):
        await client.exchange()
    retry = await Client(app, scope=scope_of(make_app)).exchange()
    assert (retry.status, retry.body, retry.replayed) == (200, b"receipt 1", True)


# -- the size


@pytest.mark.parametrize("body", [b"half", [b"ha", b"lf"], []])
def test_a_body_shorter_than_its_content_length_broke_off(
    stack: Stack, store: eo.Store, body: bytes | list[bytes]
) -> None:
    """Both in ASGI and in WSGI."""
    stack.handler = lambda call: Answer(200, body, [("Content-Length", "8")])
    stack.guard(store)
    stack.request()
    retry = stack.request()
    assert (retry.status, retry.code, len(stack.calls)) == (409, "in-doubt", 1)
    assert states(store) == ["in_doubt"]


@pytest.mark.parametrize(("status", "state"), [(401, "free"), (200, "in_doubt")])
def test_a_refusal_that_broke_off_is_a_refusal(stack: Stack, store: eo.Store, status: int, state: str) -> None:
    """Its status says that nothing was done."""
    stack.handler = lambda call: Answer(status, b"half", [("Content-Length", "8")])
    stack.guard(store)
    stack.request()
    assert states(store) == [state]


# -- over the wire


def test_a_client_sees_that_its_response_broke_off(redis_url: str, unique_name: str) -> None:
    """Behind uvicorn: it gets no end, and its retry gets no part of the response for the whole."""
    variables = {"EFFECTONCE_STORE": f"{redis_url}?namespace={unique_name}"}
    with web("-m", "uvicorn", "tests.http.broken_shop:app", "--port", "{port}", variables=variables) as server:
        headers = {"Idempotency-Key": "k"}
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{server.url}/charges", headers=headers)
        retry = httpx.post(f"{server.url}/charges", headers=headers)
        assert (retry.status_code, retry.json()["code"]) == (409, "in-doubt")
        assert Path(server.dir, "effects.txt").read_text() == "charged\n"
