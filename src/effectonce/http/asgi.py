"""The ASGI middleware: FastAPI, Starlette, Litestar, Quart, Django's async stack, any ASGI 3 application.

    app.add_middleware(IdempotencyMiddleware, store=store, principal=lambda request: request["user"].username)

Authentication and rate limiting stand *outside* of it, so that the keys of a caller are looked up for that caller only.
Compression may stand on either side: outside, replays are compressed like the first response; inside, it sees no
``Accept-Encoding`` in requests with a key, so that what is stored can be replayed to every client that retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final

from effectonce.errors import ConfigurationError, EffectOnceError, PayloadTooLarge
from effectonce.values.awaitables import maybe_await

from . import protocol
from .guard import HttpGuard, HttpMiddleware, Principal
from .inner_app import KEYED_REQUEST_SCOPE_KEY, watch_base_http_middleware
from .protocol import Response
from .response_recording import IncompleteResponse, ResponseRecording
from .routes import RoutePlan

# Every framework has its own types for these mappings, and none accepts another's.
Scope = Any
Message = Any
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
GetPrincipal = Callable[[Scope], Principal | Awaitable[Principal]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: ASGI extensions by which an application could send a body past the recording.
BYPASSING_EXTENSIONS: Final = frozenset(
    ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")
)


class IdempotencyMiddleware(HttpMiddleware[App, GetPrincipal]):
    """Runs each keyed request once, and replays its response to every retry.

    ``principal`` takes the ASGI scope and names the caller: a user or tenant id, sync or async; or it is `GLOBAL`.
    Settings for all routes are in ``default``, for some in ``routes``. ``service`` is the scope of the records: give
    each application that shares a store its own. ``docs`` is the page that problems link to. ``profile``
    is the protocol that its clients speak, where that is not the draft's (`http.profiles`).
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plan = None
        if scope["type"] == "http":
            may_have_key = bool(key_lines(scope) or self._profile.key_member)
            plan = self._table.find(scope["method"].upper(), scope["path"], may_have_key)
        if plan is None:
            await self._app(scope, receive, send)
            return
        keyed_request = KeyedRequest(self._guard, scope, receive, send)
        try:
            key = None if self._profile.key_member else protocol.parse_key(key_lines(scope), plan.route.max_key)
            principal = await maybe_await(self._guard.get_principal(scope))
            response = await keyed_request.claim(plan, key, principal)
        except EffectOnceError as error:
            response = self._guard.refusal(error, keyed_request.method, scope["path"])
            response.headers += self._guard.echo(key_lines(scope))
        except Disconnected:  # in the middle of its body: nothing was claimed, and no client waits for an answer
            return
        if response is None and not keyed_request.is_claimed:  # its key would have been in the body
            await self._app(scope, keyed_request.receive, send)
        elif response is None:
            await keyed_request.run(self._app)
        else:
            for message in make_messages(response):
                await send(message)


class Disconnected(Exception):
    """The client left before its whole request had arrived."""


class KeyedRequest:
    """One request with a key, and its response.

    The body is hashed while it is read; if the request is claimed, its response is recorded while it is sent. `receive`
    and `send` are what the application gets in place of the server's.
    """

    def __init__(self, guard: HttpGuard, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"].upper()  # as applications read it, whatever the server passes on
        self._scope = scope
        self._guard = guard
        self._receive = receive
        self._send = send
        self._body = RequestBody(self.method, scope, receive)
        self._recording: ResponseRecording | None = None  # None: not claimed
        self._held_back: list[Message] = []  # of the response: messages that wait for the first chunk, or the record
        self._status_sent = False
        self._client_left = False
        self._app_saw_disconnect = False
        self._broken_off: Exception | None = None  # why an end of the response must not be believed
        self._response_ended = asyncio.Event()

    async def claim(self, plan: RoutePlan, key: str | None, principal: Principal) -> Response | None:
        """Read the body up to its limit, and claim the request. ``key``: from the header; None: it is in the body.

        Returns the response to send instead of running the application; None if the application runs now. Raises what
        `HttpGuard.claim` raises, `PayloadTooLarge`, and `Disconnected`.
        """
        if self._recording is not None:
            raise ConfigurationError("this request is guarded twice; one guard is enough")
        response: Response | None = None
        runs = False
        try:
            fingerprint = await self._body.fingerprint(plan.route.max_body)
            query = self._scope.get("query_string", b"").decode("latin-1")
            request = self._guard.identify(
                plan, key, fingerprint, self._body.peek, self.method, self._scope["path"], query, principal
            )
            if request is not None:
                echoed = self._guard.echo(key_lines(self._scope))
                client = self._guard.store.runtime.async_client()
                claimed = await self._guard.claim_limited(plan, client, principal, *request)
                if isinstance(claimed, Response):
                    claimed.headers += echoed
                    response = claimed
                else:
                    claimed.echoed = echoed
                    self._recording = claimed
            runs = response is None
            return response
        finally:
            if not runs:
                self._body.close()

    @property
    def is_claimed(self) -> bool:
        return self._recording is not None

    async def run(self, app: App) -> None:
        """Run ``app``, and settle the request however it ends."""
        watch_base_http_middleware()
        try:
            await app(self._make_app_scope(), self.receive, self.send)
        except BaseException as error:
            await self._end(error)
            raise
        else:
            await self._end(IncompleteResponse("the application returned before its response was complete"))

    def _make_app_scope(self) -> Scope:
        """Return the scope for the application, without `BYPASSING_EXTENSIONS` and without Accept-Encoding: a response
        in an encoding that this client accepts could not be replayed to another."""
        scope = self._scope
        headers = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
        extensions = {
            name: value for name, value in (scope.get("extensions") or {}).items() if name not in BYPASSING_EXTENSIONS
        }
        return {**scope, "headers": headers, "extensions": extensions, KEYED_REQUEST_SCOPE_KEY: self}

    async def _end(self, error: BaseException) -> None:
        try:
            if self._recording is not None:
                await self._recording.fail_and_end(error)
        finally:
            self._response_ended.set()
            self._body.close()

    def break_off(self, error: BaseException) -> None:
        """The application has ended in the middle of its response. Called by an `InnerApp`: the middleware around it
        sends an end of the response all the same."""
        if not isinstance(error, Exception):
            error = IncompleteResponse(f"the application was interrupted in its response: {type(error).__name__}")
        self._broken_off = self._broken_off or error

    async def receive(self) -> Message:
        """Pass the next part of the body to the application.

        After the body, hold the server's ``http.disconnect`` back until the response is complete: a client that leaves
        must not stop work whose outcome its retry will ask for. Only a response that is too long to store is cut off.
        """
        message = await self._body.next()
        if message is not None:
            return message
        recording = self._recording
        if recording is not None and not (recording.settled or recording.too_long):
            await self._response_ended.wait()
        message = await self._receive()
        self._app_saw_disconnect |= message["type"] == "http.disconnect"
        return message

    async def send(self, message: Message) -> None:
        """Record a message of the response, and pass it on. The last one waits until the response is stored."""
        recording, kind = self._recording, message["type"]
        if recording is None or recording.settled or kind not in ("http.response.start", "http.response.body"):
            await self._send(message)
        elif kind == "http.response.start":
            headers = list(message.get("headers", ()))
            recording.start(
                message["status"], [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
            )
            self._held_back = [{**message, "headers": headers + encode_headers(recording.added_headers)}]
        else:
            self._held_back.append(message)
            may_be_sent = recording.add(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                await self._settle(recording)
                may_be_sent = True
            if may_be_sent:
                await self._send_held_back(recording)

    async def _settle(self, recording: ResponseRecording) -> None:
        """Settle the request by its response, whose end was sent. If that could not be stored, a refusal takes its
        place. If the response was broken off, raise the reason: a client that is there must not take it for whole."""
        if self._broken_off is not None:
            await recording.fail(self._broken_off)
            self._response_ended.set()
            if self._app_saw_disconnect:
                return
            raise self._broken_off
        error = await recording.settle(cut_off=self._app_saw_disconnect)
        self._response_ended.set()
        if error is not None:
            refusal = self._guard.refusal(error, self.method, self._scope["path"])
            if self._status_sent:  # all that is left is to break off
                raise error
            self._held_back = make_messages(refusal)

    async def _send_held_back(self, recording: ResponseRecording) -> None:
        messages, self._held_back = self._held_back, []
        self._status_sent = True
        for message in messages:
            if not self._client_left:
                try:
                    await self._send(message)
                except OSError:
                    self._client_left = True
        if recording.too_long:
            self._response_ended.set()
            if self._client_left and not recording.settled:
                raise ConnectionError("the client left in the middle of a response that is too long to store")


class RequestBody:
    """A request's body: hashed while it is received, and passed to the application unchanged.

    `fingerprint` reads all of it before the claim, into a spool that `next` then reads from.
    """

    def __init__(self, method: str, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        path = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
        self._state = protocol.fingerprint_state(method, path, scope.get("query_string", b""))
        self._size = 0
        self._complete = False  # all of it was received
        self._spool: IO[bytes] | None = None  # what was received before the application asked for it
        self._unread = 0  # bytes in the spool that the application has not read

    async def fingerprint(self, limit: int) -> bytes:
        """Receive the rest of the body, and return the request's fingerprint. Raises `PayloadTooLarge` over ``limit``
        bytes, `Disconnected` if the client leaves."""
        for name, value in self._scope["headers"]:
            if name == b"content-length":
                protocol.check_announced_length(value.decode("latin-1"), limit)
        if not self._complete:
            self._spool = SpooledTemporaryFile(protocol.MAX_BODY_IN_MEMORY_BYTES)  # noqa: SIM115 - it ends with this object
            while not self._complete and self._size <= limit:
                self._spool.write(self._hash(await self._receive()))
            self._unread = self._spool.tell()
            self._spool.seek(0)
        if self._size > limit:
            raise PayloadTooLarge(f"the body is over max_body={limit}")
        return protocol.fingerprint(self._state)

    def peek(self) -> bytes:
        """Return the whole body, which `fingerprint` has received. The application gets it all the same."""
        assert self._spool is not None
        body = self._spool.read()
        self._spool.seek(0)
        return body

    async def next(self) -> Message | None:
        """Return the next part for the application; None if it has had all."""
        if self._spool is not None:
            chunk = self._spool.read(protocol.BODY_CHUNK_BYTES)
            self._unread -= len(chunk)
            if self._unread == 0:
                self.close()
            return {"type": "http.request", "body": chunk, "more_body": self._unread > 0}
        if self._complete:
            return None
        message = await self._receive()
        try:
            self._hash(message)
        except Disconnected:
            return {"type": "http.disconnect"}
        return message

    def close(self) -> None:
        """Delete the spool, with what the application has not read."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _hash(self, message: Message) -> bytes:
        if message["type"] != "http.request":
            raise Disconnected
        body: bytes = message.get("body", b"")
        self._size += len(body)
        self._state.update(body)
        self._complete = not message.get("more_body", False)
        return body


def make_messages(response: Response) -> list[Message]:
    """Return the ASGI messages of a stored response, or of a problem."""
    return [
        {"type": "http.response.start", "status": response.status, "headers": encode_headers(response.headers)},
        {"type": "http.response.body", "body": response.body or b""},
    ]


def key_lines(scope: Scope) -> list[bytes]:
    """Return the lines of a request's Idempotency-Key header."""
    return [value for name, value in scope["headers"] if name == b"idempotency-key"]


def encode_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
