"""Flask: a decorator for one view, inside of whatever authenticates its caller.

    @app.post("/charges")
    @login_required
    @idempotent(store, principal=lambda: current_user.id, required=True)
    def charge(): ...

A request that may not run is answered as problem+json; with ``errors="raise"`` it raises `InProgress`,
`PayloadMismatch` and so on, for the application's own error handlers. Where authentication is itself a WSGI middleware,
`effectonce.http.wsgi` inside of it does the same for all routes at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec

from flask import Response, current_app, request
from werkzeug.exceptions import RequestEntityTooLarge

from effectonce.core.guarded_call.run import running
from effectonce.core.run_sync import run_sync
from effectonce.errors import EffectOnceError, PayloadTooLarge
from effectonce.guard.options import read_choice
from effectonce.http import protocol, wsgi
from effectonce.http.exchange import HttpGuard, Principal, Recording, claim, make_principal_getter, read_key
from effectonce.http.routes import Route, RoutePlan, make_route_plan
from effectonce.http.streams import WatchedBody
from effectonce.store import Store
from effectonce.values.fingerprint import canonical

P = ParamSpec("P")

METHODS = ("POST", "PATCH", "PUT", "DELETE")


def idempotent(
    store: Store,
    *,
    principal: Callable[[], Principal] | str,
    errors: Literal["respond", "raise"] = "respond",
    service: str = "http",
    docs: str = protocol.DRAFT,
    **settings: Any,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Run the view once for each key of a caller, and replay its response to every retry.

    ``principal`` names the caller: a user or tenant id; or `GLOBAL`. ``settings`` are those of `http.Route`.
    What the view aborts with, or the application's error handlers make of its exceptions, is its response too. Views
    may be `def` or `async def`.
    """
    settings.setdefault("methods", METHODS)
    guard, guarded = HttpGuard(store, service, docs), make_route_plan(Route(**settings), service)
    get_principal = make_principal_getter(principal)
    raises = read_choice("errors", errors, "raise", "respond")

    def refuse(error: EffectOnceError) -> Response:
        if raises:
            raise error
        return _response(guard.refusal(error, request.method, wsgi.path_of(request.environ)))

    def decorate(view: Callable[P, Any]) -> Callable[P, Any]:
        @functools.wraps(view)
        def once(*args: P.args, **kwargs: P.kwargs) -> Any:
            run_view = functools.partial(current_app.ensure_sync(view), *args, **kwargs)
            keyed = "HTTP_IDEMPOTENCY_KEY" in request.environ
            if request.method not in guarded.methods or not (keyed or guarded.required):
                return run_view()
            try:
                claimed = _claimed(guard, guarded, get_principal)
            except EffectOnceError as error:
                return refuse(error)
            if isinstance(claimed, protocol.Response):
                return _response(claimed)
            response = _answered(claimed, run_view)
            unrecorded = _record(claimed, response)
            return response if unrecorded is None else refuse(unrecorded)

        return once

    return decorate


def _claimed(guard: HttpGuard, guarded: RoutePlan, get_principal: Callable[[], Any]) -> Recording | protocol.Response:
    """The request, claimed, or the response that is stored for it."""
    environ, path = request.environ, wsgi.path_of(request.environ)
    values = [environ[name].encode("latin-1") for name in ("HTTP_IDEMPOTENCY_KEY",) if name in environ]
    key = read_key(guarded, values) or ""
    principal = get_principal()
    state = protocol.fingerprint_state(request.method, path.encode("utf-8", "surrogateescape"), request.query_string)
    state.update(_body(guarded.max_body))
    run = guard.prepare(guarded, request.method, path, key, principal, protocol.fingerprint(state))
    client = run.runtime.sync_client()
    return run_sync(claim(run, client)) or Recording(guarded, run, client, guard.docs)


def _body(cap: int) -> bytes:
    """The body, which the view can read all the same; of a form that somebody has read already, what was in it."""
    if request.__dict__.get("form") or request.__dict__.get("files"):
        files = [(name, file.filename, file.read()) for name, file in request.files.items(multi=True)]
        for file in request.files.values():
            file.seek(0)
        data = canonical([list(request.form.items(multi=True)), files])
    else:
        # One more than the cap: werkzeug cuts off a chunked body at its limit, and says nothing.
        request.max_content_length = min(cap + 1, request.max_content_length or cap + 1)
        try:
            data = request.get_data()
        except RequestEntityTooLarge as error:
            raise PayloadTooLarge(f"the body is over max_body={cap}") from error
    if len(data) > cap:
        raise PayloadTooLarge(f"the body is over max_body={cap}")
    return data


def _answered(recording: Recording, view: Callable[[], Any]) -> Response:
    """The view's response, or what the application's error handlers answer to its exception."""
    running.set(recording.run)
    try:
        try:
            return current_app.make_response(view())
        except Exception as error:
            return current_app.make_response(current_app.handle_user_exception(error))
    except BaseException as error:
        run_sync(recording.fail(error))
        recording.run.end()
        raise


def _record(recording: Recording, response: Response) -> EffectOnceError | None:
    """Settle the response, at once or when its stream ends; the error, where it must not be sent."""
    recording.start(response.status_code, response.headers.items())
    response.headers.extend(recording.published)
    if response.is_streamed or response.direct_passthrough:
        response.direct_passthrough = False
        response.response = WatchedBody(recording, response.iter_encoded(), getattr(response.response, "close", None))
        return None
    recording.add(response.get_data())
    try:
        return run_sync(recording.conclude())
    finally:
        recording.run.end()


def _response(response: protocol.Response) -> Response:
    made = Response(response.body, response.status)
    made.headers.clear()
    made.headers.extend(response.headers)
    return made
