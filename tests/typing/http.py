"""The types of HTTP. Never executed: `mypy --strict` reads it, and every line is a claim (see `api`)."""

from __future__ import annotations

from typing import Any, assert_type

import httpx
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware

import effectonce as eo
from effectonce.http import Response, Route, asgi, problem, record_key, wsgi
from effectonce.http.client import Settings, step
from effectonce.http.client.for_httpx import AsyncIdempotentTransport, IdempotentTransport
from effectonce.http.client.for_requests import IdempotentAdapter
from effectonce.integrations.fastapi import Idempotency
from effectonce.integrations.flask import idempotent

store = eo.connect("memory://")


# -- middleware


async def user(scope: asgi.Scope) -> str:
    return "alice"


app = Starlette(middleware=[Middleware(asgi.IdempotencyMiddleware, store=store, principal=user)])
app.add_middleware(
    asgi.IdempotencyMiddleware, store, principal=lambda scope: scope["user"].id, default=Route(wait="5s")
)
asgi.IdempotencyMiddleware(
    app, store, principal=eo.GLOBAL, routes={"/orders/{id}": Route(required=True), "/files/*": None}
)
asgi.IdempotencyMiddleware(app, store, principal=eo.GLOBAL, routes=lambda method, path: None)
asgi.IdempotencyMiddleware(app, store)  # type: ignore[call-arg]
asgi.IdempotencyMiddleware(app, store, principal=7)  # type: ignore[arg-type]
Route(on_error="retry")  # type: ignore[arg-type]
Route(on_lapse="resume", on_error="replay", retention="30d", keep_headers=("X-Cost",))


def plain(environ: wsgi.Environ, start_response: wsgi.StartResponse) -> list[bytes]:
    return []


guarded = wsgi.IdempotencyMiddleware(plain, store, principal=lambda environ: ("acme", 7))
wsgi.IdempotencyMiddleware(guarded, store, principal=eo.GLOBAL)
wsgi.IdempotencyMiddleware(plain, store, principal=user)  # type: ignore[arg-type]

assert_type(record_key(("acme", 7), "POST", "/charges", "k"), str)
assert_type(problem(eo.InDoubt("who knows")), Response)
store.resolve("http", record_key("alice", "POST", "/charges", "k"), "done", result=Response(201))


# -- frameworks


@idempotent(store, principal=lambda: "alice", required=True)
def charge(order: str, amount: int = 1) -> dict[str, Any]:
    return {}


charge("4711", amount=2)
charge(amount=2)  # type: ignore[call-arg]

api = FastAPI()
guard = Idempotency(api, store)


@api.post("/charges", **guard.route(principal=lambda: "alice", retention="30d"))
async def acharge(amount: int) -> int:
    return amount


# -- the client

httpx.Client(transport=IdempotentTransport(retries=3))
httpx.AsyncClient(transport=AsyncIdempotentTransport(httpx.AsyncHTTPTransport(), max_wait="10s"))
httpx.Client(transport=AsyncIdempotentTransport())  # type: ignore[arg-type]
IdempotentAdapter(Settings(provider="stripe", errors="return"), pool_maxsize=10)
Settings(errors="ignore")  # type: ignore[arg-type]
with step("second"):
    pass
