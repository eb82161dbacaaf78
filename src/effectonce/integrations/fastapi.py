"""FastAPI: a dependency claims the key, after authentication, and the schema documents it.

    idempotency = Idempotency(app, store)

    @app.post("/charges", **idempotency.route(principal=current_user_id, required=True, retention="30d"))
    async def charge(payment: Payment, user: Annotated[User, Depends(current_user)]) -> Receipt: ...

``principal`` is a dependency like any other: what it raises (401, 429) is answered before any key is looked up. A
request that may not run raises `InProgress`, `PayloadMismatch` and so on, which is answered as problem+json, unless the
application has an exception handler of its own for it. Where authentication is no dependency but a middleware,
`effectonce.http.asgi` inside of it does the same for all routes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import Response as FastAPIResponse

from effectonce.errors import ConfigurationError, EffectOnceError, MissingKey
from effectonce.guard.once import GLOBAL
from effectonce.http import asgi, protocol
from effectonce.http.exchange import HttpGuard, make_principal_getter, principal_key, refusal
from effectonce.http.routes import SAFE, Route, make_route_plan
from effectonce.store import Store

METHODS = ("POST", "PATCH", "PUT", "DELETE")

_DESCRIPTION = "A new UUID for each operation, the same for each retry of it."
_PROBLEM = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "code"],
}


def _documented(description: str, *headers: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/problem+json": {"schema": _PROBLEM}},
        "headers": {name: {"schema": {"type": "integer"}, "description": "Seconds."} for name in headers},
    }


RESPONSES: dict[int | str, dict[str, Any]] = {
    400: _documented("The Idempotency-Key is missing, repeated or cannot be read."),
    409: _documented("The request is being processed (with Retry-After), or its outcome is in doubt.", "Retry-After"),
    413: _documented("The body is too large for a request with an Idempotency-Key."),
    422: _documented("The Idempotency-Key was used before with another request, or the body is not valid."),
    503: _documented("The request could not be recorded; nothing was done.", "Retry-After"),
}
"""What a guarded operation may answer beside its own responses; `Idempotency.route` adds it to the schema."""

for _status in (400, 422):  # FastAPI's own of a body that it cannot read, which it leaves to whoever documents one
    RESPONSES[_status]["content"]["application/json"] = {
        "schema": {"type": "object", "properties": {"detail": {}}, "required": ["detail"]}
    }


class Idempotency:
    """The guard of one application: `route` makes an operation run once for each key.

    ``app`` is the application whose routes are guarded: one that is mounted in another has its own. ``service`` is the
    scope of the records: give each application that shares a store its own. ``docs`` is the page that problems link to.
    """

    def __init__(self, app: FastAPI, store: Store, *, service: str = "http", docs: str = protocol.DRAFT) -> None:
        self._app = app
        self._guard = HttpGuard(store, service, docs)
        app.add_middleware(_Exchanges, guard=self._guard)
        app.add_exception_handler(_Replayed, _replayed)
        answer_problems(app, docs)

    def route(
        self,
        *,
        principal: Callable[..., Any] | str,
        dependencies: Sequence[Any] = (),
        responses: Mapping[int | str, dict[str, Any]] | None = None,
        openapi_extra: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Arguments for ``@app.post(path, **…)``: the dependency, the header and the responses of a guarded operation.

        ``principal`` is a dependency that gives the caller's id, or `GLOBAL`; ``settings`` are those of `http.Route`.
        Your own ``dependencies``, ``responses`` and ``openapi_extra`` are passed on beside ours.
        """
        settings.setdefault("methods", METHODS)
        guarded = make_route_plan(Route(**settings), self._guard.service)
        caller = Depends(_dependency(principal))

        async def claim(request: Request, principal: Any = caller) -> None:
            if request.method not in guarded.methods:
                return
            if protocol.KEY not in request.headers:
                if guarded.required:
                    raise MissingKey("the request has no Idempotency-Key, and its route requires one")
                return
            exchange = request.scope.get(asgi.EXCHANGE)
            if not isinstance(exchange, asgi.Exchange) or request.app is not self._app:
                raise ConfigurationError(
                    "Idempotency(app, store) was made for another application than this route's; one that is mounted "
                    "answers by itself, so it needs an Idempotency of its own"
                )
            exchange.read_key(guarded)
            try:
                response = await exchange.claim(guarded, principal)
            except asgi.Disconnected:  # answered as FastAPI answers it without us: to nobody
                raise HTTPException(400, "The body is not whole.") from None
            if response is not None:
                raise _Replayed(response)

        extra = dict(openapi_extra or {})
        extra["parameters"] = [*extra.get("parameters", ()), _header(guarded.required, guarded.max_key)]
        return {
            "dependencies": [*dependencies, Depends(claim)],
            "responses": {**RESPONSES, **(responses or {})},
            "openapi_extra": extra,
        }


def request_key(principal: Callable[..., Any] | str, *, longest: int = 255) -> Callable[..., str]:
    """A dependency that gives the key of a request for mode T: with it an `Inbox` joins your own transaction.

        inbox = Inbox(scope="orders")

        @app.post("/orders", responses=RESPONSES)
        def order(order: Order, key: Annotated[str, Depends(request_key(current_user_id))], session: …) -> Receipt:
            with session.begin():
                return inbox.call(session, key, lambda *_: place(session, order), payload=order, returns=Receipt).value

    It stands for caller, method, path and Idempotency-Key, which is required. ``principal`` is as in
    `Idempotency.route`. What it and the inbox raise is answered by `answer_problems`.
    """
    protocol.require_parser()
    caller = Depends(_dependency(principal))

    def key(
        request: Request,
        idempotency_key: Annotated[str | None, Header(alias="Idempotency-Key", description=_DESCRIPTION)] = None,
        principal: Any = caller,
    ) -> str:
        values = [value.encode("latin-1") for value in request.headers.getlist(protocol.KEY)]
        if not values:
            raise MissingKey("the request has no Idempotency-Key, and its route requires one")
        sent = protocol.parse_key(values, longest)
        return protocol.record_key(principal_key(principal), request.method, request.scope["path"], sent)

    return key


def answer_problems(app: FastAPI, docs: str = protocol.DRAFT) -> None:
    """Answer every error of effectonce's as problem+json, unless the application handles it itself."""

    async def refused(request: Request, error: Exception) -> FastAPIResponse:
        if not isinstance(error, EffectOnceError):
            raise error
        return _response(refusal(error, request.method, request.scope["path"], docs))

    app.add_exception_handler(EffectOnceError, refused)


class _Exchanges:
    """Around the whole application: whatever is claimed inside is recorded as it leaves."""

    def __init__(self, app: asgi.App, guard: HttpGuard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        keyed = scope["type"] == "http" and asgi.KEY in [name for name, _ in scope["headers"]]
        if keyed and scope["method"] not in SAFE:
            await asgi.Exchange(self._guard, scope, receive, send).run(self._app)
        else:
            await self._app(scope, receive, send)


class _Replayed(Exception):
    """A dependency cannot answer, so it raises the answer."""

    def __init__(self, response: protocol.Response) -> None:
        super().__init__(response)
        self.response = response


async def _replayed(request: Request, error: Exception) -> FastAPIResponse:
    if not isinstance(error, _Replayed):
        raise error
    return _response(error.response)


def _response(response: protocol.Response) -> FastAPIResponse:
    made = FastAPIResponse(response.body, response.status)
    made.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    return made


def _dependency(principal: Callable[..., Any] | str) -> Callable[..., Any]:
    getter = make_principal_getter(principal)
    return getter if getter is principal else lambda: GLOBAL


def _header(required: bool, longest: int) -> dict[str, Any]:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "required": required,
        "description": _DESCRIPTION,
        "schema": {"type": "string", "minLength": 1, "maxLength": longest},
    }
