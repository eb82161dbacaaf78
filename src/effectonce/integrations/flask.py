"""Flask: a decorator for one view, below the decorator that authenticates its caller.

    @app.post("/charges")
    @login_required
    @idempotent(store, principal=lambda: current_user.id, required=True)
    def charge(): ...

A request that may not run is answered as problem+json; with ``errors="raise"`` it raises `InProgress`,
`PayloadMismatch` and so on, for the application's own error handlers. Where authentication is itself a WSGI middleware,
`effectonce.http.wsgi` inside of it does the same for all routes at once.

`request_key` and `answer_problems` are for a view whose effect is a row, in one commit with an `Inbox` (mode T).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec

from flask import Flask, Response, current_app, g, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from effectonce.core.run_sync import run_sync
from effectonce.errors import EffectOnceError, PayloadTooLarge
from effectonce.http import protocol, wsgi
from effectonce.http.guard import KEY_VARIABLE, HttpGuard, Principal, identify_request, key_lines, refusal
from effectonce.http.recorded_bodies import RecordedBody
from effectonce.http.response_recording import ResponseRecording
from effectonce.http.routes import RoutePlan, make_view_plan
from effectonce.sessions import outage_error
from effectonce.store import Store
from effectonce.values.fingerprint import canonical_json

P = ParamSpec("P")


def idempotent(
    store: Store,
    *,
    principal: Callable[[], Principal] | str,
    errors: Literal["respond", "raise"] = "respond",
    service: str = "http",
    docs: str = protocol.DRAFT_URL,
    **settings: Any,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Run the view once for each key of a caller, and replay its response to every retry.

    ``principal`` names the caller: a user or tenant id; or `GLOBAL`. ``settings`` are those of `http.Route`.
    What the view aborts with, or the application's error handlers make of its exceptions, is its response too. Views
    may be `def` or `async def`.
    """
    guard = HttpGuard(store, service, docs, principal=principal, errors=errors)
    plan = make_view_plan(service, settings)

    def refuse(error: EffectOnceError) -> Response:
        return _make_response(guard.refusal(error, request.method, wsgi.path_of(request.environ)))

    def decorate(view: Callable[P, Any]) -> Callable[P, Any]:
        @functools.wraps(view)
        def once(*args: P.args, **kwargs: P.kwargs) -> Any:
            run_view = functools.partial(current_app.ensure_sync(view), *args, **kwargs)
            if not plan.guards(request.method, KEY_VARIABLE in request.environ):
                return run_view()
            try:
                claimed = _claim(guard, plan)
            except EffectOnceError as error:
                return refuse(error)
            if isinstance(claimed, protocol.Response):
                return _make_response(claimed)
            try:
                response = _run_view(run_view)
            except BaseException as error:
                run_sync(claimed.fail_and_end(error))
                raise
            unrecorded = _record(claimed, response)
            return response if unrecorded is None else refuse(unrecorded)

        return once

    return decorate


def request_key(principal: Principal, *, longest: int = 255) -> str:
    """Return the key of the current request, for an `Inbox` in your own transaction (mode T).

        @app.post("/orders")
        def order():
            key = request_key(current_user.id)
            with closing(connect()) as conn, conn:
                return inbox.call(conn, key, place, payload=request.get_json()).value

    It is made of caller, method, path and Idempotency-Key, which is required. What it and the inbox raise, and the
    database while it is away, is answered by `answer_problems`.
    """
    g.effectonce_uses_key = True
    sent = protocol.parse_key(key_lines(request.environ), longest)
    return identify_request(principal, request.method, wsgi.path_of(request.environ), sent)


def answer_problems(app: Flask, docs: str = protocol.DRAFT_URL) -> None:
    """Answer every error of effectonce as problem+json. In a view that has called `request_key`, so is a driver's error
    while the database is away: 503 with Retry-After. Error handlers of your own, for a class or a status, come first;
    all other errors stay as they are."""
    protocol.load_parser()

    def answer(error: Exception) -> Response | HTTPException:
        problem: Exception | None = error
        if not isinstance(error, EffectOnceError):
            problem = outage_error(error) if g.get("effectonce_uses_key") else None
        if isinstance(problem, EffectOnceError):
            return _make_response(refusal(problem, request.method, wsgi.path_of(request.environ), docs))
        if isinstance(error, HTTPException):
            return error
        raise error

    app.register_error_handler(Exception, answer)


def _claim(guard: HttpGuard, plan: RoutePlan) -> ResponseRecording | protocol.Response:
    environ, method = request.environ, request.method
    path = wsgi.path_of(environ)
    key = protocol.parse_key(key_lines(environ), plan.route.max_key)
    stored_key = identify_request(guard.get_principal(), method, path, key)
    state = wsgi.fingerprint_state(environ, method, path)
    state.update(_read_body(plan.route.max_body))
    return run_sync(guard.claim(plan, guard.store.runtime.sync_client(), stored_key, protocol.fingerprint(state)))


def _read_body(limit: int) -> bytes:
    """Return the body; the view can still read it. If a form was parsed before, its fields and files stand for the
    body."""
    if request.__dict__.get("form") or request.__dict__.get("files"):
        files = [(name, file.filename, file.read()) for name, file in request.files.items(multi=True)]
        for file in request.files.values():
            file.seek(0)
        data = canonical_json([list(request.form.items(multi=True)), files])
    else:
        # One byte more than the limit: werkzeug cuts a chunked body off at its limit, without an error.
        request.max_content_length = min(limit + 1, request.max_content_length or limit + 1)
        try:
            data = request.get_data()
        except RequestEntityTooLarge as error:
            raise PayloadTooLarge(f"the body is over max_body={limit}") from error
    if len(data) > limit:
        raise PayloadTooLarge(f"the body is over max_body={limit}")
    return data


def _run_view(view: Callable[[], Any]) -> Response:
    """Return the view's response, or the one that the application's error handlers make of its exception."""
    try:
        return current_app.make_response(view())
    except Exception as error:
        return current_app.make_response(current_app.handle_user_exception(error))


def _record(recording: ResponseRecording, response: Response) -> EffectOnceError | None:
    """Settle the response, at once or when its stream ends. Returns an error if it must not be sent."""
    recording.start(response.status_code, response.headers.items())
    response.headers.extend(recording.added_headers)
    if not (response.is_streamed or response.direct_passthrough):
        return run_sync(recording.settle_and_end(response.get_data()))
    response.direct_passthrough = False
    response.response = RecordedBody(recording, response.iter_encoded(), getattr(response.response, "close", None))
    return None


def _make_response(response: protocol.Response) -> Response:
    """Make a Flask response from a stored response, or from a problem."""
    made = Response(response.body, response.status)
    made.headers.clear()
    made.headers.extend(response.headers)
    return made
