"""The dashboard as an ASGI application: the routing table, and the checks before every route."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qs

from msgspec import json
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from effectonce.errors import ConfigurationError, EffectOnceError, InvalidKey, MissingKey, NotInDoubt, Retryable, show

from .access import COOKIE_PREFIX, SECURITY_HEADERS, SESSION_LIFETIME_S, Access, LoginSession
from .context import RequestContext
from .dashboard import DASHBOARD_FOLDER, Dashboard, link
from .pages import audit, dead_letters, doctor, in_doubt, inbox, outbox, overview, records, sagas, search
from .sources import Sources
from .view_pool import ViewTimeout, start_view

log = logging.getLogger("effectonce")

MAX_FORM_BYTES: Final = 1_000_000
WRONG_TOKEN_DELAY_S: Final = 0.3
SHUTDOWN_TIMEOUT_S: Final = 2.0

#: What the error page says to each HTTP status that Starlette answers.
ERROR_TEXTS: Final = {
    404: "There is no such page.",
    405: "This address does not take that method.",
    413: "The form is too large.",
}

View = Callable[[RequestContext], Response]

#: Viewers and operators may open these.
PAGES: Final[dict[str, View]] = {
    "/": overview.show_overview,
    "/overview.json": overview.send_figures,
    "/records": records.search,
    "/record": records.show_one,
    "/in-doubt": in_doubt.show_queue,
    "/sagas": sagas.show_list,
    "/saga": sagas.show_one,
    "/inbox": inbox.show_list,
    "/inbox-message": inbox.show_one,
    "/outbox": outbox.show_rows,
    "/search": search.show_results,
    "/dead-letters": dead_letters.show_list,
    "/dead-letter": dead_letters.show_one,
    "/doctor": doctor.show_findings,
    "/audit": audit.show_audit_log,
}

#: These views query no store or broker. They do not wait for a slot of the pool, so they work while a store hangs.
STORELESS_VIEWS: Final = frozenset({overview.show_overview, overview.send_figures, audit.show_audit_log})

#: Only operators may post these, with the CSRF token of their session.
ACTIONS: Final[dict[str, View]] = {
    "/in-doubt/resolve": in_doubt.resolve,
    "/outbox/unpark": outbox.unpark,
    "/dead-letters/preview": dead_letters.preview,
    "/dead-letters/redrive": dead_letters.redrive,
}


def make_app(sources: Sources, access: Access) -> Starlette:
    """Make the application that shows ``sources`` to visitors with a token of ``access``. It closes ``sources`` at its
    end."""
    dashboard = Dashboard(sources, access)

    def close() -> None:
        dashboard.poller.stop()
        sources.close()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        dashboard.poller.start()
        try:
            yield
        finally:
            # A call that hangs ends with the process.
            await asyncio.wait({start_view(close)}, timeout=SHUTDOWN_TIMEOUT_S)

    async def answer_error(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        text = ERROR_TEXTS.get(status) or str(getattr(error, "detail", ""))
        return dashboard.render("error.html", status, code=str(status), text=text)

    app = Starlette(
        routes=[
            Mount("/static", StaticFiles(directory=DASHBOARD_FOLDER / "static"), name="static"),
            Route("/login", _login_endpoint(dashboard), methods=["GET", "POST"]),
            Route("/logout", _action_endpoint(dashboard, _log_out, viewers_too=True, storeless=True), methods=["POST"]),
            *(Route(path, _page_endpoint(dashboard, view), methods=["GET"]) for path, view in PAGES.items()),
            *(Route(path, _action_endpoint(dashboard, view), methods=["POST"]) for path, view in ACTIONS.items()),
        ],
        exception_handlers={HTTPException: answer_error},
        lifespan=lifespan,
    )
    app.add_middleware(SecurityMiddleware, access=access)
    app.state.dashboard = dashboard
    return app


RouteEndpoint = Callable[[Request], Awaitable[Response]]


def _cookie_name(request: Request) -> str:
    """Return the name of the session's cookie, which holds the port. Browsers share the cookies of one host between its
    ports: without the port, a dashboard of another store on this machine would end every session here."""
    return f"{COOKIE_PREFIX}_{(request.scope.get('server') or ('', 0))[1] or 0}"


def _session_of(dashboard: Dashboard, request: Request) -> LoginSession | None:
    return dashboard.access.find_session(request.cookies.get(_cookie_name(request)))


def _page_endpoint(dashboard: Dashboard, view: View) -> RouteEndpoint:
    async def endpoint(request: Request) -> Response:
        session = _session_of(dashboard, request)
        if session is None:
            if request.headers.get("accept", "").startswith("application/json"):
                return PlainTextResponse("log in first", 401)
            is_overview = view in (overview.show_overview, overview.send_figures)
            address = f"{request.url.path}?{request.url.query}".removesuffix("?")
            return RedirectResponse(link("/login", to=None if is_overview else address), 303)
        return await _run_view(view, RequestContext(dashboard, session, request, {}), storeless=view in STORELESS_VIEWS)

    return endpoint


def _action_endpoint(
    dashboard: Dashboard, view: View, *, viewers_too: bool = False, storeless: bool = False
) -> RouteEndpoint:
    """Answer 401 without a session, 403 without the form's CSRF token and for a viewer, unless ``viewers_too``.

    ``storeless``: the action asks no store, so it needs no place in the view pool."""

    async def endpoint(request: Request) -> Response:
        session = _session_of(dashboard, request)
        if session is None:
            raise HTTPException(401, "Log in first.")
        form = await _read_form(request)
        csrf = (form.get("csrf") or [""])[0]
        if not dashboard.access.is_own_page(request.headers) or not dashboard.access.is_csrf_valid(session, csrf):
            raise HTTPException(403, "This form belongs to another session: open the page again, and repeat it.")
        if not (viewers_too or session.can_act):
            raise HTTPException(403, "Only an operator may do that.")
        context = RequestContext(dashboard, session, request, form)
        return await _run_view(view, context, is_action=True, storeless=storeless)

    return endpoint


async def _run_view(
    view: View, context: RequestContext, *, is_action: bool = False, storeless: bool = False
) -> Response:
    """Run ``view``, and turn every error into a page: Starlette's own would lack our headers and our wording."""
    view_pool = context.dashboard.view_pool
    try:
        if storeless:
            return await start_view(lambda: view(context))
        return await view_pool.answer(lambda: view(context), is_action=is_action)
    except ViewTimeout:
        store = context.sources.store.runtime.backend
        undone = "Nothing was done: it had not begun. " if is_action else ""
        text = (
            f"{store!r}, or the broker, has not answered within {view_pool.timeout:g} s. {undone}Check the server and "
            "the network (effectonce check shows what it answers), then try again."
        )
        return _problem(context, 503, "store-unavailable", text)
    except asyncio.CancelledError:  # the dashboard is stopping: the visitor gets an answer all the same
        what = " Your action may have been done: see the audit log." if is_action else ""
        return _problem(context, 503, "ending", f"The dashboard was stopped.{what}")
    except EffectOnceError as error:
        return _problem(context, _status_of(error), error.code, show(error, 1000))
    except Exception:  # its text may hold secrets, so it goes to the log only
        log.exception("the dashboard could not answer %s", context.request.url.path)
        return _problem(context, 500, "defect", "The dashboard has a defect: see its log.")


def _status_of(error: EffectOnceError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, ConfigurationError | MissingKey | InvalidKey):
        return 400
    if isinstance(error, NotInDoubt):
        return 409
    return 503 if isinstance(error, Retryable) else 500


def _problem(context: RequestContext, status: int, code: str, text: str) -> Response:
    if context.request.url.path.endswith(".json"):
        return Response(json.encode({"code": code, "error": text}), status, media_type="application/json")
    return context.render("problem.html", status, code=code, text=text)


def _login_endpoint(dashboard: Dashboard) -> RouteEndpoint:
    async def endpoint(request: Request) -> Response:
        if request.method != "POST":
            return dashboard.render("login.html", wrong=False, to=request.query_params.get("to", ""))
        form = await _read_form(request)
        token, who, to = ((form.get(name) or [""])[0] for name in ("token", "who", "to"))
        session = None
        if who.strip() and dashboard.access.is_own_page(request.headers):
            session = dashboard.access.log_in(token, who)
        if session is None:
            await asyncio.sleep(WRONG_TOKEN_DELAY_S)
            return dashboard.render("login.html", 401, wrong=True, to=to)
        response = RedirectResponse(to if to.partition("?")[0] in PAGES else "/", 303)  # to no other site
        secure = request.headers.get("origin", "").startswith("https:")  # as the browser sees it, behind a proxy too
        cookie = _cookie_name(request)
        response.set_cookie(
            cookie, session.id, max_age=SESSION_LIFETIME_S, httponly=True, samesite="strict", secure=secure
        )
        return response

    return endpoint


def _log_out(context: RequestContext) -> Response:
    context.dashboard.access.log_out(context.session)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(_cookie_name(context.request), httponly=True, samesite="strict")
    return response


async def _read_form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form as browsers send it. Raises 413 if it is too large, 400 if it is not a form."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413)
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return {}
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=5000, errors="strict")
    except ValueError:
        raise HTTPException(400) from None


class SecurityMiddleware:
    """Stands before all routes: refuses foreign host names, and adds `SECURITY_HEADERS` to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                if scope["path"].startswith("/static/") and message["status"] == 200:
                    headers["cache-control"] = "private, max-age=86400"
                headers["server-timing"] = f"app;dur={(time.perf_counter() - started_at) * 1000:.1f}"
            await send(message)

        app: Any = self._app
        if not self._access.is_host_allowed(Headers(scope=scope)):
            app = PlainTextResponse("this dashboard does not serve that host name; add it with --allow-host", 421)
        await app(scope, receive, send_with_headers)
