"""FastAPI: a dependency claims the key, after authentication, and the schema documents it.

    idempotency = Idempotency(app, store)

    @app.post("/charges", **idempotency.route(principal=current_user_id, required=True, retention="30d"))
    async def charge(payment: Payment, user: Annotated[User, Depends(current_user)]) -> Receipt: ...

``principal`` is a dependency like any other: what it raises (401, 429) is answered before any key is looked up. A
request that may not run raises `InProgress`, `PayloadMismatch` and so on, which is answered as problem+json, unless the
application has an exception handler of its own for it. Where a middleware authenticates, not a
dependency, `effectonce.http.asgi` inside of it does the same for all routes at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import Response as FastAPIResponse

from effectonce.errors import ConfigurationError, EffectOnceError
from effectonce.guard.once import GLOBAL
from effectonce.http import asgi, protocol
from effectonce.http.guard import HttpGuard, identify_request, make_principal_getter, refusal
from effectonce.http.inner_app import KEYED_REQUEST_SCOPE_KEY
from effectonce.http.routes import SAFE_METHODS, RoutePlan, make_view_plan
from effectonce.sessions import outage_error
from effectonce.store import Store

_KEY_DESCRIPTION: Final = "A new UUID for each operation, the same for each retry of it."
_PROBLEM_SCHEMA: Final = {
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


def _problem_docs(description: str, *headers: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/problem+json": {"schema": _PROBLEM_SCHEMA}},
        "headers": {name: {"schema": {"type": "integer"}, "description": "Seconds."} for name in headers},
    }


RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    400: _problem_docs("The Idempotency-Key is missing, repeated or cannot be read."),
    409: _problem_docs("The request is being processed (with Retry-After), or its outcome is in doubt.", "Retry-After"),
    413: _problem_docs("The body is too large for a request with an Idempotency-Key."),
    422: _problem_docs("The Idempotency-Key was used before with another request, or the body is not valid."),
    503: _problem_docs("The request could not be recorded; nothing was done.", "Retry-After"),
}
"""What a guarded operation may answer beside its own responses; `Idempotency.route` adds it to the schema."""

# FastAPI answers these itself, too, and leaves out of the schema those that a route documents.
for _status in (400, 422):
    RESPONSES[_status]["content"]["application/json"] = {
        "schema": {"type": "object", "properties": {"detail": {}}, "required": ["detail"]}
    }


class Idempotency:
    """The guard of one application: `route` makes an operation run once for each key.

    ``app`` is the application whose routes are guarded: one that is mounted in another has its own. ``service`` is the
    scope of the records: give each application that shares a store its own. ``docs`` is the page that problems link to.
    """

    def __init__(self, app: FastAPI, store: Store, *, service: str = "http", docs: str = protocol.DRAFT_URL) -> None:
        self._app = app
        self._guard = HttpGuard(store, service, docs, principal=GLOBAL)  # each route has a principal of its own
        app.add_middleware(_RecordingMiddleware, guard=self._guard)
        app.add_exception_handler(_Replay, _answer_replay)
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
        """Return arguments for ``@app.post(path, **…)``: the dependency, header and responses of a guarded operation.

        ``principal`` is a dependency that gives the caller's id, or `GLOBAL`; ``settings`` are those of `http.Route`.
        Your own ``dependencies``, ``responses`` and ``openapi_extra`` are passed on beside ours.
        """
        plan = make_view_plan(self._guard.service, settings)
        caller = Depends(_dependency(principal))

        async def claim(request: Request, principal: Any = caller) -> None:
            lines = asgi.key_lines(request.scope)
            if not plan.guards(request.method, bool(lines)):
                return
            key = protocol.parse_key(lines, plan.route.max_key)
            keyed_request = request.scope.get(KEYED_REQUEST_SCOPE_KEY)
            if not isinstance(keyed_request, asgi.KeyedRequest) or request.app is not self._app:
                raise ConfigurationError(
                    "Idempotency(app, store) was made for another application than this route's; one that is mounted "
                    "answers by itself, so it needs an Idempotency of its own"
                )
            try:
                response = await keyed_request.claim(plan, key, principal)
            except asgi.Disconnected:  # as FastAPI answers it, though the client is gone
                raise HTTPException(400, "The body is not whole.") from None
            if response is not None:
                raise _Replay(response)

        extra = dict(openapi_extra or {})
        extra["parameters"] = [*extra.get("parameters", ()), _key_parameter(plan)]
        return {
            "dependencies": [*dependencies, Depends(claim)],
            "responses": {**RESPONSES, **(responses or {})},
            "openapi_extra": extra,
        }


def request_key(principal: Callable[..., Any] | str, *, longest: int = 255) -> Callable[..., AsyncIterator[str]]:
    """Make a dependency that returns the key of a request, for an `Inbox` in your own transaction (mode T).

        inbox = Inbox(scope="orders")

        @app.post("/orders", responses=RESPONSES)
        def order(order: Order, key: Annotated[str, Depends(request_key(current_user_id))], session: …) -> Receipt:
            with session.begin():
                return inbox.call(session, key, lambda *_: place(session, order), payload=order, returns=Receipt).value

    It is made of caller, method, path and Idempotency-Key, which is required. ``principal`` is as in
    `Idempotency.route`. What it and the inbox raise is answered by `answer_problems`.

    While the database is away, the driver raises where your code uses it: in the handler, at its commit, or in a
    dependency after this one that opens the connection. That becomes `StoreUnavailable`: 503 with Retry-After.
    """
    protocol.load_parser()
    caller = Depends(_dependency(principal))

    async def key(
        request: Request,
        idempotency_key: Annotated[str | None, Header(alias="Idempotency-Key", description=_KEY_DESCRIPTION)] = None,
        principal: Any = caller,
    ) -> AsyncIterator[str]:
        sent = protocol.parse_key(asgi.key_lines(request.scope), longest)
        try:
            yield identify_request(principal, request.method, request.scope["path"], sent)
        except Exception as error:
            outage = outage_error(error)
            if outage is None:
                raise
            raise outage from error

    return key


def answer_problems(app: FastAPI, docs: str = protocol.DRAFT_URL) -> None:
    """Answer every error of effectonce as problem+json, unless the application handles it itself."""

    async def refuse(request: Request, error: Exception) -> FastAPIResponse:
        assert isinstance(error, EffectOnceError)
        return _make_response(refusal(error, request.method, request.scope["path"], docs))

    app.add_exception_handler(EffectOnceError, refuse)


class _RecordingMiddleware:
    """Wraps the whole application: if a dependency inside claims the request, the response is recorded on its way
    out."""

    def __init__(self, app: asgi.App, guard: HttpGuard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] == "http" and scope["method"] not in SAFE_METHODS and asgi.key_lines(scope):
            await asgi.KeyedRequest(self._guard, scope, receive, send).run(self._app)
        else:
            await self._app(scope, receive, send)


class _Replay(Exception):
    """Carries a stored response, its argument, out of a dependency, which cannot return one."""


async def _answer_replay(request: Request, error: Exception) -> FastAPIResponse:
    return _make_response(error.args[0])


def _make_response(response: protocol.Response) -> FastAPIResponse:
    made = FastAPIResponse(response.body, response.status)
    made.raw_headers = asgi.encode_headers(response.headers)
    return made


def _dependency(principal: Callable[..., Any] | str) -> Callable[..., Any]:
    getter = make_principal_getter(principal)
    return getter if getter is principal else lambda: GLOBAL


def _key_parameter(plan: RoutePlan) -> dict[str, Any]:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "required": plan.route.required,
        "description": _KEY_DESCRIPTION,
        "schema": {"type": "string", "minLength": 1, "maxLength": plan.route.max_key},
    }
