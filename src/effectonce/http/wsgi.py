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

from effectonce.core.run_sync import run_sync
from effectonce.errors import EffectOnceError, PayloadTooLarge

from . import protocol
from .guard import KEY_VARIABLE, HttpMiddleware, Principal, key_lines
from .protocol import Headers, Response
from .recorded_bodies import RecordedBody
from .response_recording import ResponseRecording
from .routes import RoutePlan

Environ = dict[str, Any]
StartResponse = Callable[..., Callable[[bytes], object]]
GetPrincipal = Callable[[Environ], Principal]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class IdempotencyMiddleware(HttpMiddleware[App, GetPrincipal]):
    """Runs each keyed request once, and replays its response to every retry.

    ``principal`` takes the WSGI environ and names the caller: a user or tenant id; or it is `GLOBAL`. Settings for
    all routes are in ``default``, for some in ``routes``. ``service`` is the scope of the records: give each
    application that shares a store its own. ``docs`` is the page that problems link to. ``profile``
    is the protocol that its clients speak, where that is not the draft's (`http.profiles`).
    """

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"].upper()  # as applications read it, whatever the server passes on
        path = path_of(environ)
        plan = self._table.find(method, path, KEY_VARIABLE in environ or bool(self._profile.key_member))
        if plan is None:
            return self._app(environ, start_response)

        echoed = self._guard.echo(key_lines(environ))

        def refuse(error: EffectOnceError) -> Response:
            response = self._guard.refusal(error, method, path)
            response.headers += echoed
            return response

        claimed: ResponseRecording | Response | None
        try:
            claimed, body = self._claim(plan, environ, method, path)
            if isinstance(claimed, Response):
                claimed.headers += echoed
            elif claimed is not None:
                claimed.echoed = echoed
        except EffectOnceError as error:
            claimed = refuse(error)
        except TruncatedBody:
            claimed = Response(400, [("content-length", "0")])
        if isinstance(claimed, Response):
            start_response(_status_line(claimed.status), claimed.headers)
            return [claimed.body] if claimed.body else []
        if claimed is None:  # its key would have been in the body
            return self._app({**environ, "wsgi.input": body}, start_response)
        # Without Accept-Encoding: a response in an encoding that this client accepts could not be replayed to another.
        app_environ = {name: value for name, value in environ.items() if name != "HTTP_ACCEPT_ENCODING"}
        app_environ["wsgi.input"] = body
        response = RecordedResponse(claimed, refuse, start_response)
        try:
            return response.record(self._app(app_environ, response.start_response))
        except BaseException as error:
            run_sync(claimed.fail_and_end(error))
            raise

    def _claim(
        self, plan: RoutePlan, environ: Environ, method: str, path: str
    ) -> tuple[ResponseRecording | Response | None, IO[bytes]]:
        key = None if self._profile.key_member else protocol.parse_key(key_lines(environ), plan.route.max_key)
        principal = self._guard.get_principal(environ)
        body, fingerprint = read_body(environ, method, path, plan.route.max_body)

        def peek() -> bytes:
            content = body.read()
            body.seek(0)
            return content

        query = environ.get("QUERY_STRING", "")
        request = self._guard.identify(plan, key, fingerprint, peek, method, path, query, principal)
        if request is None:
            return None, body
        client = self._guard.store.runtime.sync_client()
        return run_sync(self._guard.claim_limited(plan, client, principal, *request)), body


class RecordedResponse(RecordedBody):
    """The application's response. Status and headers are held back until the first bytes of the body may be sent."""

    def __init__(
        self, recording: ResponseRecording, refuse: Callable[[EffectOnceError], Response], start_response: StartResponse
    ) -> None:
        super().__init__(recording, (), None)
        self._make_refusal = refuse
        self._start_response = start_response
        self._status = ""
        self._headers: Headers = []
        self._written: list[bytes] = []
        self._head_sent = False

    def start_response(self, status: str, headers: Headers, exc_info: Any = None) -> Callable[[bytes], object]:
        """Called by the application. What it writes to the returned function is sent when it has returned."""
        if self._head_sent:  # an error after the first bytes: the server raises it
            return self._start_response(status, headers, exc_info)
        self._status, self._headers = status, [*headers, *self._recording.added_headers]
        self._recording.start(int(status.split(" ", 1)[0]), headers)
        return self._written.append

    def record(self, chunks: Iterable[bytes]) -> Iterable[bytes]:
        """Record ``chunks``, which the application returned, on their way to the server."""
        if not isinstance(chunks, list | tuple):
            self._chunks = chain(self._written, chunks)
            self._close_chunks = getattr(chunks, "close", None)
            return self
        # A list stays a list: a server then adds the Content-Length itself.
        body = b"".join((*self._written, *chunks))
        error = run_sync(self._recording.settle_and_end(body))
        if error is not None:
            body = self._refuse(error)
        self._send_head()
        return [body] if body else []

    def _send_head(self) -> None:
        if not self._head_sent:
            self._head_sent = True
            self._start_response(self._status, self._headers)

    def _refuse(self, error: EffectOnceError) -> bytes:
        response = self._make_refusal(error)
        if self._head_sent:
            raise error
        self._status, self._headers = _status_line(response.status), response.headers
        return response.body or b""


class TruncatedBody(Exception):
    """The body ended before its Content-Length, or cannot be read: the client left, or sent a wrong length."""


def read_body(environ: Environ, method: str, path: str, limit: int) -> tuple[IO[bytes], bytes]:
    """Read the body, up to ``limit`` bytes. Returns it, ready to be read again, and the request's fingerprint. Raises
    `TruncatedBody` or `PayloadTooLarge`."""
    source, length = environ["wsgi.input"], environ.get("CONTENT_LENGTH") or ""
    ends_by_itself = bool(environ.get("wsgi.input_terminated"))
    if length and not (length.isdecimal() and length.isascii()):
        raise TruncatedBody
    protocol.check_announced_length(length, limit)
    bytes_left = int(length or 0)
    if not length and ends_by_itself:
        bytes_left = limit + 1
    state = fingerprint_state(environ, method, path)
    spool = SpooledTemporaryFile(protocol.MAX_BODY_IN_MEMORY_BYTES)  # noqa: SIM115 - it ends with the request
    while bytes_left:
        try:
            chunk = source.read(min(bytes_left, protocol.BODY_CHUNK_BYTES))
        except (OSError, ValueError, EOFError) as error:  # what servers raise at a broken chunk, or a reset
            raise TruncatedBody from error
        if not chunk:
            break
        state.update(chunk)
        spool.write(chunk)
        bytes_left -= len(chunk)
    if length and bytes_left:
        raise TruncatedBody
    if not length and ends_by_itself and not bytes_left:
        raise PayloadTooLarge(f"the body is over max_body={limit}")
    spool.seek(0)
    return spool, protocol.fingerprint(state)


def path_of(environ: Environ) -> str:
    """Return the path, its bytes decoded as UTF-8; WSGI decodes them as ISO 8859-1."""
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return path.encode("latin-1").decode("utf-8", "surrogateescape")


def fingerprint_state(environ: Environ, method: str, path: str) -> protocol.FingerprintState:
    """Start the hash that is updated with the body; see `protocol.fingerprint_state`. ``path`` is that of `path_of`."""
    query = environ.get("QUERY_STRING", "")
    return protocol.fingerprint_state(method, path.encode("utf-8", "surrogateescape"), query.encode("latin-1"))


def _status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:  # a status that HTTP has no name for
        return f"{status} Unknown"
