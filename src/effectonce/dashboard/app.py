"""The dashboard as an ASGI application: the routing table, and what stands before every route."""

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

from .access import COOKIE, HEADERS, LIFETIME, Access
from .context import HERE, Ask, Desk
from .pages import checks as upkeep
from .pages import dead_letters as letters
from .pages import in_doubt as doubts
from .pages import outbox, overview, records, sagas
from .sources import Sources
from .view_pool import Overdue, aside

log = logging.getLogger("effectonce")

LARGEST_FORM: Final = 1_000_000
WRONG_TOKEN_DELAY: Final = 0.3
LEAVE_WITHIN: Final = 2.0

#: What an error of ours is to a browser.
STATUS: Final = (
    ((ConfigurationError, MissingKey, InvalidKey), 400),
    ((NotInDoubt,), 409),
    ((Retryable,), 503),
)

View = Callable[[Ask], Response]

#: Everybody who has logged in may look at these.
PAGES: Final[dict[str, View]] = {
    "/": overview.overview,
    "/overview.json": overview.figures,
    "/records": records.found,
    "/record": records.one,
    "/doubts": doubts.queue,
    "/sagas": sagas.listed,
    "/saga": sagas.one,
    "/outbox": outbox.rows,
    "/letters": letters.listed,
    "/letter": letters.one,
    "/doctor": upkeep.doctor,
    "/audit": upkeep.audit,
}

#: Pages that are made from what is at hand: they come also while a store hangs.
AT_HAND: Final = frozenset({overview.overview, overview.figures, upkeep.audit})

#: These are for operators, by POST, with the token of their session's forms.
ACTIONS: Final[dict[str, View]] = {
    "/doubts/resolve": doubts.resolve,
    "/outbox/unpark": outbox.unpark,
    "/letters/preview": letters.preview,
    "/letters/redrive": letters.redrive,
}


def make_app(sources: Sources, access: Access) -> Starlette:
    """The dashboard of ``sources`` for those whom ``access`` lets in. It closes the sources at its end."""
    desk = Desk(sources, access)

    def leave() -> None:
        desk.watcher.stop()
        sources.close()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        desk.watcher.start()
        try:
            yield
        finally:
            await asyncio.wait({aside(leave)}, timeout=LEAVE_WITHIN)  # what hangs ends with the process

    async def failed(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        texts = {404: "There is no such page.", 405: "That cannot be done here.", 413: "That is too large."}
        return desk.render("error.html", status, code=str(status), text=texts.get(status, ""), session=None)

    app = Starlette(
        routes=[
            Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
            Route("/login", _login(desk), methods=["GET", "POST"]),
            Route("/logout", _action(desk, lambda ask: _logged_out(ask), anyone=True), methods=["POST"]),
            *(Route(path, _page(desk, view), methods=["GET"]) for path, view in PAGES.items()),
            *(Route(path, _action(desk, view), methods=["POST"]) for path, view in ACTIONS.items()),
        ],
        exception_handlers={HTTPException: failed},
        lifespan=lifespan,
    )
    app.add_middleware(Shield, access=access)
    app.state.desk = desk
    return app


Endpoint = Callable[[Request], Awaitable[Response]]


def _cookie(request: Request) -> str:
    """The name of the cookie. Browsers keep those of one host together, whatever the port: a dashboard of another store
    on this machine would otherwise end every session here."""
    return f"{COOKIE}_{(request.scope.get('server') or ('', 0))[1] or 0}"


def _page(desk: Desk, view: View) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        session = desk.access.session_of(request.cookies.get(_cookie(request)))
        if session is None:
            if request.headers.get("accept", "").startswith("application/json"):
                return PlainTextResponse("log in first", 401)
            return RedirectResponse("/login", 303)
        ask = Ask(desk, session, request.url.path, _cookie(request), request.query_params, {})
        return await _answered(view, ask, at_hand=view in AT_HAND)

    return endpoint


def _action(desk: Desk, view: View, *, anyone: bool = False) -> Endpoint:
    """401 without a session, 403 for a viewer (unless it is for ``anyone``) and without the token of the form."""

    async def endpoint(request: Request) -> Response:
        session = desk.access.session_of(request.cookies.get(_cookie(request)))
        if session is None:
            return desk.render("error.html", 401, code="401", text="Log in first.", session=None)
        form = await _form(request)
        given = (form.get("csrf") or [""])[0]
        if not desk.access.own_page(request.headers) or not desk.access.confirmed(session, given):
            text = "This form is not of your session: open the page again, and repeat it."
            return desk.render("error.html", 403, code="403", text=text, session=None)
        if not (anyone or session.acts):
            return desk.render("error.html", 403, code="403", text="Only an operator may do that.", session=None)
        ask = Ask(desk, session, request.url.path, _cookie(request), request.query_params, form)
        return await _answered(view, ask, acts=True, at_hand=anyone)

    return endpoint


async def _answered(view: View, ask: Ask, *, acts: bool = False, at_hand: bool = False) -> Response:
    patience = ask.desk.patience
    try:
        if at_hand:
            return await aside(lambda: view(ask))
        return await patience.answer(lambda: view(ask), acts=acts)
    except Overdue:
        text = (
            f"{ask.sources.store.runtime.backend!r}, or the broker, has not answered within {patience.seconds:g} s. "
            + ("Nothing was done: it had not begun. " if acts else "")
            + "See to the server and the way to it (effectonce check says what it answers), then try again."
        )
        return _problem(ask, 503, "store-unavailable", text)
    except asyncio.CancelledError:  # the dashboard ends: there is somebody to tell, and nobody to tell it further
        what = " What you asked for may have been done: the audit log has it." if acts else ""
        return _problem(ask, 503, "ending", f"The dashboard was stopped.{what}")
    except EffectOnceError as error:
        status = next((status for kinds, status in STATUS if isinstance(error, kinds)), 500)
        return _problem(ask, status, error.code, show(error, 1000))
    except Exception:  # here, so that this answer has the headers of all others; its text may hold secrets
        log.exception("the dashboard could not answer %s", ask.path)
        return _problem(ask, 500, "defect", "This should not have happened: see the log.")


def _problem(ask: Ask, status: int, code: str, text: str) -> Response:
    if ask.path.endswith(".json"):
        return Response(json.encode({"code": code, "error": text}), status, media_type="application/json")
    return ask.render("problem.html", status, code=code, text=text)


def _login(desk: Desk) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        if request.method != "POST":
            return desk.render("login.html", wrong=False)
        form = await _form(request)
        token, who = ((form.get(name) or [""])[0] for name in ("token", "who"))
        cookie = desk.access.log_in(token, who) if who.strip() and desk.access.own_page(request.headers) else None
        if cookie is None:
            await asyncio.sleep(WRONG_TOKEN_DELAY)
            return desk.render("login.html", 401, wrong=True)
        response = RedirectResponse("/", 303)
        secure = request.headers.get("origin", "").startswith("https:")  # as the browser sees it, behind a proxy too
        response.set_cookie(_cookie(request), cookie, max_age=LIFETIME, httponly=True, samesite="strict", secure=secure)
        return response

    return endpoint


def _logged_out(ask: Ask) -> Response:
    ask.desk.access.log_out(ask.session)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(ask.cookie, httponly=True, samesite="strict")
    return response


async def _form(request: Request) -> dict[str, list[str]]:
    """The fields of a form as browsers send it; 413 for one that is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_FORM:
            raise HTTPException(413)
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return {}
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=5000, errors="strict")
    except ValueError:
        raise HTTPException(400) from None


class Shield:
    """Stands before all routes: refuses hosts that are not ours, and sends the headers of `access.HEADERS`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def shielded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if scope["path"].startswith("/static/") and message["status"] == 200:
                    headers["cache-control"] = "private, max-age=86400"
                headers["server-timing"] = f"app;dur={(time.perf_counter() - began) * 1000:.1f}"
            await send(message)

        app: Any = self._app
        if not self._access.addressed(Headers(scope=scope)):
            app = PlainTextResponse("this dashboard is not known by that name; see --allow-host", 421)
        await app(scope, receive, shielded)
