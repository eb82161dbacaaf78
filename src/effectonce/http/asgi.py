"""The ASGI middleware: FastAPI, Starlette, Litestar, Quart, Django's async stack, any ASGI 3 application.

    app.add_middleware(IdempotencyMiddleware, store=store, principal=lambda request: request["user"].username)

Authentication and rate limiting stand *outside* of it, so that the keys of a caller are looked up for that caller only.
Compression may stand on either side: outside, replays are compressed like the first response; inside, it sees no
``Accept-Encoding`` in requests with a key, so that what is stored can be replayed to whoever retries.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from effectonce.core.guarded_call.run import running
from effectonce.errors import ConfigurationError, EffectOnceError, PayloadTooLarge
from effectonce.store import Store

from . import protocol
from .exchange import HttpGuard, Incomplete, Principal, Recording, claim, make_principal_getter, read_key
from .protocol import DRAFT, Response
from .routes import Route, RoutePlan, Routes, RouteTable

# Every framework has its own types for these mappings, and none accepts another's.
Scope = Any
Message = Any
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY = protocol.KEY.encode()
SPOOLED = 1024 * 1024  # what of one request's body is kept in memory; the rest goes to a temporary file
PIECE = 65_536
EXCHANGE = "effectonce.exchange"  # where in the ASGI scope an application finds the `Exchange` it runs in
#: Ways to send a body past us.
BYPASSES = frozenset(("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"))


class IdempotencyMiddleware:
    """Runs each keyed request once, and replays its response to every retry.

    ``principal`` takes the ASGI scope and names the caller: a user or tenant id, sync or async; or it is `GLOBAL`.
    Settings for all routes are in ``default``, for some in ``routes``. ``service`` is the scope of the records: give
    each application that shares a store its own. ``docs`` is the page that problems link to.
    """

    def __init__(
        self,
        app: App,
        store: Store,
        *,
        principal: Callable[[Scope], Principal | Awaitable[Principal]] | str,
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (self._methods is None or scope["method"].upper() in self._methods):
            keyed = KEY in [name for name, _ in scope["headers"]]
            if keyed or self._requires:
                plan = self._find(scope["method"].upper(), scope["path"])
                if plan is not None and (keyed or plan.required):
                    await self._guarded(plan, scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _guarded(self, plan: RoutePlan, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._guard, scope, receive, send)
        try:
            exchange.read_key(plan)
            principal = self._principal(scope)
            if type(principal) is not str and inspect.isawaitable(principal):
                principal = await principal
            response = await exchange.claim(plan, principal)
        except EffectOnceError as error:
            response = self._guard.refusal(error, exchange.method, scope["path"])
        except Disconnected:  # in the middle of its body: nothing was claimed, and nobody waits for an answer
            return
        if response is not None:
            await respond(send, response)
        else:
            await exchange.run(self._app)


class Disconnected(Exception):
    """The client went away before its request was whole."""


class Exchange:
    """One request with a key: its body, hashed as it is read, and once it is claimed its response, recorded as it is
    sent."""

    def __init__(self, guard: HttpGuard, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.method: str = scope["method"].upper()  # as applications read it, whatever the server passes on
        self.recording: Recording | None = None
        self._guard = guard
        self._receive = receive
        self._send = send
        self._key = ""
        self._body = Body(self.method, scope, receive)
        self._held: list[Message] = []  # of the response: what waits for the first chunk, or for the record
        self._started = False
        self._gone = False  # the client is
        self._ended: asyncio.Event | None = None  # somebody waits for the end, and this tells it

    # -- the claim

    def read_key(self, plan: RoutePlan) -> None:
        """Read the header; what is wrong with it is told before anything else is asked."""
        values = [value for name, value in self.scope["headers"] if name == KEY]
        self._key = read_key(plan, values) or ""

    async def claim(self, plan: RoutePlan, principal: Principal) -> Response | None:
        """Read the body up to the cap, then claim. A response is to be sent instead of running the application.

        Raises what `exchange.claim` raises, `PayloadTooLarge`, and `Disconnected`.
        """
        if self.recording is not None:
            raise ConfigurationError("this request is guarded twice; one guard is enough")
        guard, method, path = self._guard, self.method, self.scope["path"]
        try:
            prints = await self._body.fingerprint(plan.max_body)
            run = guard.prepare(plan, method, path, self._key, principal, prints)
            client = run.runtime.async_client()
            response = await claim(run, client)
        except BaseException:
            self._body.close()
            raise
        if response is not None:
            self._body.close()
            return response
        self.recording = Recording(plan, run, client, guard.docs)
        running.set(run)
        return None

    # -- the application

    async def run(self, app: App) -> None:
        """Run ``app``, and settle what comes of it, however it ends."""
        try:
            await app(self._narrowed(), self.receive, self.send)
        except BaseException as error:
            await self._over(error)
            raise
        else:
            await self._over(Incomplete("the application returned before its response was complete"))

    def _narrowed(self) -> Scope:
        """The scope without what would let the application answer past us, or in an encoding of this client's."""
        scope = self.scope
        headers = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
        extensions = {name: value for name, value in (scope.get("extensions") or {}).items() if name not in BYPASSES}
        return {**scope, "headers": headers, "extensions": extensions, EXCHANGE: self}

    async def _over(self, error: BaseException) -> None:
        recording = self.recording
        try:
            if recording is not None and not recording.concluded:
                await recording.fail(error)
        finally:
            if recording is not None:
                recording.run.end()
            self._tell_ended()
            self._body.close()

    async def receive(self) -> Message:
        """The body, as it came. Then nothing until the response is complete: a client that disconnects does not stop
        work whose outcome its retry will ask for. Only a response that is too long to be kept anyway is cut off."""
        message = await self._body.next()
        if message is not None:
            return message
        recording = self.recording
        if recording is not None and not (recording.concluded or recording.over):
            if self._ended is None:
                self._ended = asyncio.Event()
            await self._ended.wait()
        return await self._receive()

    async def send(self, message: Message) -> None:
        """Pass the response on, and keep it. Its last part waits until it is recorded."""
        recording = self.recording
        if recording is None or recording.concluded:
            await self._send(message)
            return
        kind = message["type"]
        if kind == "http.response.start":
            headers = list(message.get("headers", ()))
            recording.start(message["status"], _decoded(headers))
            self._held = [{**message, "headers": headers + _encoded(recording.published)}]
        elif kind != "http.response.body":
            await self._send(message)
        else:
            self._held.append(message)
            may_go = recording.add(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                await self._conclude(recording)
            elif may_go:
                await self._pass_on(recording)

    async def _conclude(self, recording: Recording) -> None:
        error = await recording.conclude()
        self._tell_ended()
        if error is None:
            await self._pass_on(recording)
            return
        response = self._guard.refusal(error, self.method, self.scope["path"])
        if self._started:  # too late to say so in any other way than by breaking off
            raise error
        await respond(self._send, response)

    async def _pass_on(self, recording: Recording) -> None:
        held, self._held = self._held, []
        self._started = True
        for message in held:
            if not self._gone:
                try:
                    await self._send(message)
                except OSError:
                    self._gone = True
        if recording.over:
            self._tell_ended()
            if self._gone and not recording.concluded:
                raise ConnectionError("the client left in the middle of a response that is too long to keep")

    def _tell_ended(self) -> None:
        if self._ended is not None:
            self._ended.set()


class Body:
    """A request's body: hashed as it comes in, and given to the application as it came."""

    def __init__(self, method: str, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        path = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
        self._state = protocol.fingerprint_state(method, path, scope.get("query_string", b""))
        self._size = 0
        self._whole = False
        self._first: Message | None = None  # a body of one message needs no file
        self._spool: IO[bytes] | None = None
        self._left = 0  # bytes in the spool that the application has not read

    async def fingerprint(self, cap: int) -> bytes:
        """Read what is left of the body, up to ``cap`` bytes of it in all."""
        for name, value in self._scope["headers"]:
            if name == b"content-length" and value.isdigit() and (len(value) > 18 or int(value) > cap):
                raise PayloadTooLarge(f"the body is over max_body={cap}, it says")
        while not self._whole and self._size <= cap:
            message = self._hashed(await self._receive())
            if self._spool is None and not message.get("more_body", False):
                self._first = message
            else:
                if self._spool is None:
                    self._spool = SpooledTemporaryFile(SPOOLED)  # noqa: SIM115 - it ends with this object
                body = message.get("body", b"")
                self._spool.write(body)
                self._left += len(body)
        if self._size > cap:
            raise PayloadTooLarge(f"the body is over max_body={cap}")
        if self._spool is not None:
            self._spool.seek(0)
        return protocol.fingerprint(self._state)

    async def next(self) -> Message | None:
        """The next part for the application; None where it has had all."""
        message, self._first = self._first, None
        if message is not None:
            return message
        if self._spool is not None:
            piece = self._spool.read(PIECE)
            self._left -= len(piece)
            if self._left == 0:
                self.close()
            return {"type": "http.request", "body": piece, "more_body": self._left > 0}
        if self._whole:
            return None
        try:
            return self._hashed(await self._receive())
        except Disconnected:
            return {"type": "http.disconnect"}

    def close(self) -> None:
        """Nobody will read it any more."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _hashed(self, message: Message) -> Message:
        if message["type"] != "http.request":
            raise Disconnected
        body = message.get("body", b"")
        self._size += len(body)
        self._state.update(body)
        self._whole = not message.get("more_body", False)
        return message


async def respond(send: Send, response: Response) -> None:
    """Send a response of our own, or a stored one."""
    await send({"type": "http.response.start", "status": response.status, "headers": _encoded(response.headers)})
    await send({"type": "http.response.body", "body": response.body or b""})


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def _decoded(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
