"""A route of an ASGI application under trial: its requests go through the whole application, as from a client that
retries."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from effectonce.errors import ConfigurationError, show
from effectonce.guard.introspection import name_of
from effectonce.message import message_id
from effectonce.store import Store, all_stores

from .fault_points import FaultInjectingBackend, FaultInjector, trace_lines
from .lockstep import trace_in_lockstep
from .subjects import (
    CONCURRENT_DELIVERIES,
    HOUR_US,
    LOST_REMEDY,
    DeliveryResult,
    DeliveryStatus,
    Operation,
    drop_frames,
    killed_before,
    muted_log,
)

#: Statuses that say "not now": the client sends the same request again.
RETRIED_STATUSES: Final = (408, 409, 425, 429)
#: How long a response may take, and the start of an application, before it is given up as one that does not end.
ANSWER_TIMEOUT_S: Final = 60.0
#: The codes of our problems after which no retry helps, and an operator has to look.
PARKED_CODES: Final = ("in-doubt", "permanent-failure")


class HttpRequest(Struct, frozen=True):
    """One request to an application: ``HttpRequest("POST", "/orders", {"amount": 7})``.

    ``body`` is sent as it is where it is bytes, else as JSON. Without an Idempotency-Key among the ``headers``, each
    trial sends one of its own, the same with each retry.
    """

    method: str
    path: str  # with the query, if there is one
    body: Any = None
    headers: Mapping[str, str] = {}


def is_asgi_app(value: Any) -> bool:
    """Whether ``value`` is called with ``scope``, ``receive`` and ``send``, as ASGI applications are."""
    try:
        return list(inspect.signature(value).parameters)[:3] == ["scope", "receive", "send"]
    except (TypeError, ValueError):
        return False


def find_asgi_route(function: Any) -> tuple[Any, str, str] | None:
    """Find the FastAPI or Starlette application in the module of ``function`` that has it as a route. Returns the
    application, method and path; None: it is not a route. Raises `ConfigurationError` for the route of a router, which
    is nothing without the application that includes it."""
    function = inspect.unwrap(function) if callable(function) else None
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    router_request = ""
    for value in list(vars(module).values()) if module is not None else ():
        routes = getattr(value, "routes", None)
        for route in routes if isinstance(routes, list) else ():
            endpoint, methods = getattr(route, "endpoint", None), getattr(route, "methods", None)
            if endpoint is None or not methods or inspect.unwrap(endpoint) is not function:
                continue
            method = min(methods)  # of GET and HEAD, GET
            if hasattr(value, "user_middleware"):
                return value, method, route.path
            router_request = f"{method} {route.path}"
    if router_request:
        raise ConfigurationError(
            f"{name_of(function)} is a route of a router: verify the application that includes it, with its middleware "
            f"(effectonce verify shop.main:app --request '{router_request}')"
        )
    return None


class HttpSubject:
    """A request to an ASGI application: FastAPI, Starlette, or any other."""

    is_async = True
    may_overlap = False
    redelivery_pause_us = HOUR_US
    lost_remedy = LOST_REMEDY
    unguarded_remedy = (
        "The second request cannot know that there was a first: guard the route by its Idempotency-Key, with "
        "IdempotencyMiddleware(app, store=…) or FastAPI's Idempotency(app, store).route(…)."
    )

    def __init__(self, app: Any, request: HttpRequest) -> None:
        if not request.path.startswith("/"):
            raise ConfigurationError(f"the path {show(request.path)!r} of a request begins with a slash: '/orders'")
        self._app = app
        self._request = request
        self._state: dict[str, Any] = {}  # what the application's lifespan leaves for its requests
        self.name = f"{request.method.upper()} {request.path}"
        self.stores: Collection[Store] = all_stores()

    def may_rerun(self, clean: FaultInjector) -> bool:
        return clean.used_store

    def make_backend(self) -> FaultInjectingBackend:
        return FaultInjectingBackend()

    def begin(self, backend: FaultInjectingBackend) -> Operation:
        headers = {name.lower(): value for name, value in self._request.headers.items()}
        headers.setdefault("idempotency-key", message_id())
        body = self._request.body
        if not isinstance(body, bytes):
            headers.setdefault("content-type", "application/json")
            body = b"" if body is None else msgspec.json.encode(body)
        headers["content-length"] = str(len(body))
        headers.setdefault("host", "testserver")
        path, _, query = self._request.path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self._request.method.upper(),
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 50000),
            "server": ("testserver", 80),
        }
        return _RetriedRequest(self._app, scope, body, self._state)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the application, as a server does, and shut it down at the end. One that knows no lifespan runs as it
        is."""
        to_app: asyncio.Queue[Any] = asyncio.Queue()
        from_app: asyncio.Queue[Any] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": self._state}
        lifespan = asyncio.ensure_future(self._app(scope, to_app.get, from_app.put))
        to_app.put_nowait({"type": "lifespan.startup"})
        started = asyncio.ensure_future(from_app.get())
        await asyncio.wait([lifespan, started], timeout=ANSWER_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not started.done() and not lifespan.done():
            started.cancel()
            lifespan.cancel()
            raise ConfigurationError(
                f"the application's lifespan has not started in {ANSWER_TIMEOUT_S:g} s; what does it wait for?"
            )
        if started.done() and started.result()["type"] == "lifespan.startup.failed":
            raise ConfigurationError(f"the application did not start: {started.result().get('message', '')}")
        started.cancel()
        try:
            with muted_log():
                yield
        finally:
            to_app.put_nowait({"type": "lifespan.shutdown"})
            with suppress(Exception):  # it knows no lifespan, or does not end
                await asyncio.wait_for(lifespan, ANSWER_TIMEOUT_S)


class _RetriedRequest:
    """One request, which a client sends until it has an answer."""

    def __init__(self, app: Any, scope: dict[str, Any], body: bytes, state: dict[str, Any]) -> None:
        self._app, self._scope, self._body, self._state = app, scope, body, state

    async def deliver(self, injector: FaultInjector) -> DeliveryResult:
        with injector.trace_steps(new_threads=True):
            answer = await self._send()
        if injector.killed:
            return DeliveryResult(killed_before(injector), "redeliver", error=answer.error)
        return answer

    async def deliver_concurrently(self) -> DeliveryResult:
        with trace_lines(trace_in_lockstep(CONCURRENT_DELIVERIES), new_threads=True):
            answers = await asyncio.gather(*[self._send() for _ in range(CONCURRENT_DELIVERIES)])
        statuses = ", ".join(answer.outcome for answer in answers)
        # None is refused: the clean delivery has shown that the application takes the request.
        parked = any(answer.status == "parked" for answer in answers)
        status: DeliveryStatus = "parked" if parked else "done"
        if any(answer.status == "redeliver" for answer in answers):
            status = "redeliver"
        return DeliveryResult(f"{CONCURRENT_DELIVERIES} requests at once: {statuses}", status)

    async def _send(self) -> DeliveryResult:
        """Send the request once. What an application raises after its answer, as Starlette does, does not count."""
        answer = _Answer(self._body)
        error: BaseException | None = None
        limit = asyncio.timeout(ANSWER_TIMEOUT_S)
        try:
            async with limit:
                await self._app({**self._scope, "state": dict(self._state)}, answer.receive, answer.send)
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as raised:  # Starlette's middleware raises a kill inside a group
            if limit.expired():
                raise ConfigurationError(
                    f"the application has not ended its response to {self._scope['method']} {self._scope['path']} in "
                    f"{ANSWER_TIMEOUT_S:g} s; does its route end, or wait for the client to leave?"
                ) from None
            drop_frames(raised)
            error = raised
        if not answer.status:
            outcome = "it answered nothing" if error is None else f"it raised {type(error).__name__}: {error}"
            return DeliveryResult(outcome, "redeliver", error=error)
        text = f"it answered {answer.status}{f' {answer.code}' if answer.code else ''}"
        if answer.status < 400:
            return DeliveryResult(text, "done", (answer.status, bytes(answer.body)), has_value=True)
        if answer.code in PARKED_CODES:
            return DeliveryResult(text, "parked", error=error)
        retried = answer.status >= 500 or answer.status in RETRIED_STATUSES
        if not retried:
            text = f"{text}: {show(bytes(answer.body).decode(errors='replace'), 200)}"
        return DeliveryResult(text, "redeliver" if retried else "refused", error=error)


class _Answer:
    """The two ends of one exchange with an application."""

    def __init__(self, body: bytes) -> None:
        self.status = 0
        self.body = bytearray()
        self._request = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive(self) -> Any:
        if self._request:
            return self._request.pop()
        await asyncio.Event().wait()  # the client stays until it has its answer

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    @property
    def code(self) -> str:
        """The code of a problem of ours; "": it is none."""
        try:
            return str(msgspec.json.decode(bytes(self.body), type=dict[str, Any]).get("code", ""))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return ""
