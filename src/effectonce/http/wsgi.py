"""The WSGI middleware: Flask, Pyramid, Bottle, any WSGI application, under threads.

    app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, store, principal=lambda environ: environ["REMOTE_USER"])

Authentication stands *outside* of it, so that the keys of a caller are looked up for that caller only. Where it is part
of the application (Flask's, Django's), use the decorator or the middleware in `effectonce.integrations` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from effectonce.core.guarded_call.run import running
from effectonce.core.run_sync import run_sync
from effectonce.errors import EffectOnceError, PayloadTooLarge
from effectonce.store import Store

from . import protocol
from .exchange import HttpGuard, Principal, Recording, claim, make_principal_getter, read_key
from .protocol import DRAFT, Headers, Response
from .routes import Route, RoutePlan, Routes, RouteTable
from .streams import WatchedBody

Environ = dict[str, Any]
StartResponse = Callable[..., Callable[[bytes], object]]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

SPOOLED = 1024 * 1024
PIECE = 65_536


class IdempotencyMiddleware:
    """Runs each keyed request once, and replays its response to every retry.

    ``principal`` takes the WSGI environ and names the caller: a user or tenant id; or it is `GLOBAL`. Settings for
    all routes are in ``default``, for some in ``routes``. ``service`` is the scope of the records: give each
    application that shares a store its own. ``docs`` is the page that problems link to.
    """

    def __init__(
        self,
        app: App,
        store: Store,
        *,
        principal: Callable[[Environ], Principal] | str,
        default: Route | None = Route(),  # noqa: B008 - frozen
        routes: Routes | None = None,
        service: str = "http",
        docs: str = DRAFT,
    ) -> None:
        self._app = app
        self._guard = HttpGuard(store, service, docs)
        self._principal = make_principal_getter(principal)
        table = RouteTable(default, routes, service)
        self._methods, self._requires, self._find = table.methods, table.requires, table.find

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"].upper()  # as applications read it, whatever the server passes on
        if self._methods is None or method in self._methods:
            keyed = "HTTP_IDEMPOTENCY_KEY" in environ
            if keyed or self._requires:
                plan = self._find(method, path_of(environ))
                if plan is not None and (keyed or plan.required):
                    return self._guarded(plan, environ, start_response)
        return self._app(environ, start_response)

    def _guarded(self, plan: RoutePlan, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        guard, method, path = self._guard, environ["REQUEST_METHOD"].upper(), path_of(environ)
        response: Response | None
        try:
            values = [environ[name].encode("latin-1") for name in ("HTTP_IDEMPOTENCY_KEY",) if name in environ]
            key = read_key(plan, values) or ""
            principal = self._principal(environ)
            body, prints = read_body(environ, plan.max_body)
            run = guard.prepare(plan, method, path, key, principal, prints)
            client = run.runtime.sync_client()
            response = run_sync(claim(run, client))
        except EffectOnceError as error:
            response = guard.refusal(error, method, path)
        except Truncated:
            response = Response(400, [("content-length", "0")])
        if response is not None:
            return respond(start_response, response)
        narrowed = {name: value for name, value in environ.items() if name != "HTTP_ACCEPT_ENCODING"}
        narrowed["wsgi.input"] = body
        running.set(run)
        head = ResponseHead(guard, Recording(plan, run, client, guard.docs), method, path, start_response)
        try:
            chunks = self._app(narrowed, head.start_response)
            if isinstance(chunks, list | tuple):  # a server tells the length of one by itself, so it stays one
                whole = b"".join((*head.written, *chunks))
                head.recording.expect(len(whole))
                return list(WatchedBody(head.recording, [whole], None, head))
            return WatchedBody(head.recording, chain(head.written, chunks), getattr(chunks, "close", None), head)
        except BaseException as error:
            head.fail(error)
            raise
        finally:
            if head.recording.concluded:
                run.end()


class ResponseHead:
    """Status and headers of the application's response, held back until the first bytes of it may leave."""

    def __init__(
        self, guard: HttpGuard, recording: Recording, method: str, path: str, start_response: StartResponse
    ) -> None:
        self.recording = recording
        self.written: list[bytes] = []
        self._guard = guard
        self._about = (method, path)
        self._start_response = start_response
        self._status = ""
        self._headers: Headers = []
        self._sent = False

    def start_response(self, status: str, headers: Headers, exc_info: Any = None) -> Callable[[bytes], object]:
        """What the application calls. What it then writes, instead of returning it, leaves when it returns."""
        if self._sent:  # an error after the first bytes: the server raises it
            return self._start_response(status, headers, exc_info)
        self._status, self._headers = status, [*headers, *self.recording.published]
        self.recording.start(int(status.split(" ", 1)[0]), headers)
        return self.written.append

    def send(self) -> None:
        if not self._sent:
            self._sent = True
            self._start_response(self._status, self._headers)

    def refuse(self, error: EffectOnceError) -> bytes:
        response = self._guard.refusal(error, *self._about)
        if self._sent:
            raise error
        self._status, self._headers = _status_line(response.status), response.headers
        return response.body or b""

    def fail(self, error: BaseException) -> None:
        if not self.recording.concluded:
            run_sync(self.recording.fail(error))


class Truncated(Exception):
    """The body ended before its announced length, or cannot be read: the client went away, or lied."""


def read_body(environ: Environ, cap: int) -> tuple[IO[bytes], bytes]:
    """The body up to ``cap`` bytes, ready to be read again, and the request's fingerprint."""
    source, length = environ["wsgi.input"], environ.get("CONTENT_LENGTH") or ""
    ends_by_itself = bool(environ.get("wsgi.input_terminated"))
    if length and not (length.isdecimal() and length.isascii()):
        raise Truncated
    if len(length) > 18 or int(length or 0) > cap:
        raise PayloadTooLarge(f"the body is over max_body={cap}, it says")
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    query = environ.get("QUERY_STRING", "")
    method = environ["REQUEST_METHOD"].upper()
    state = protocol.fingerprint_state(method, path.encode("latin-1"), query.encode("latin-1"))
    spool = SpooledTemporaryFile(SPOOLED)  # noqa: SIM115 - it ends with the request
    left = int(length) if length else cap + 1 if ends_by_itself else 0
    while left:
        try:
            piece = source.read(min(left, PIECE))
        except (OSError, ValueError, EOFError) as error:  # what servers raise at a broken chunk, or a reset
            raise Truncated from error
        if not piece:
            break
        state.update(piece)
        spool.write(piece)
        left -= len(piece)
    if length and left:
        raise Truncated
    if not length and ends_by_itself and not left:
        raise PayloadTooLarge(f"the body is over max_body={cap}")
    spool.seek(0)
    return spool, protocol.fingerprint(state)


def path_of(environ: Environ) -> str:
    """The path as its bytes read in UTF-8; WSGI gives them as ISO 8859-1."""
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return path if path.isascii() else path.encode("latin-1").decode("utf-8", "surrogateescape")


def respond(start_response: StartResponse, response: Response) -> Iterable[bytes]:
    """A response of our own, or a stored one."""
    start_response(_status_line(response.status), response.headers)
    return [response.body] if response.body else []


def _status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:  # one that HTTP has no name for
        return f"{status} Unknown"
