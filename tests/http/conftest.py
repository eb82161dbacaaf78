"""One small application behind the ASGI or the WSGI middleware: tests of both are written once, and run on both."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.http import Route, asgi, wsgi
from effectonce.testing import ManualClock

ALICE = ("X-User", "alice")
BOB = ("X-User", "bob")


@dataclass
class Call:
    """A request, as the application sees it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Reply:
    """A response, as the client sees it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    chunks: list[bytes] = field(default_factory=list)

    def __getitem__(self, name: str) -> str | None:
        return next((value for header_name, value in self.headers if header_name.lower() == name), None)

    @property
    def replayed(self) -> bool:
        return self["idempotent-replayed"] == "true"

    @property
    def code(self) -> str | None:
        """The code of a problem; None of any other response."""
        return self.json["code"] if self["content-type"] == "application/problem+json" else None

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class Answer:
    """The application's response; ``then`` is raised after its last chunk."""

    status: int = 200
    body: bytes | Iterable[bytes] = b"ok"
    headers: list[tuple[str, str]] = field(default_factory=list)
    then: BaseException | None = None

    def chunks(self) -> Iterator[bytes]:
        yield from [self.body] if isinstance(self.body, bytes) else self.body
        if self.then is not None:
            raise self.then


class Stack:
    """The application, a middleware around it, and a client that calls them without a server."""

    name = ""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.handler: Callable[[Call], Answer] = lambda call: Answer(201, f"receipt {len(self.calls)}".encode())
        self.outside: Callable[[Any], Any] = lambda app: app
        self.inside: Callable[[Any], Any] = lambda app: app

    def handle(self, call: Call) -> Answer:
        self.calls.append(call)
        return self.handler(call)

    def guard(self, store: eo.Store, default: Route | None = Route(), **options: Any) -> None:  # noqa: B008
        raise NotImplementedError

    def request(
        self, key: str | bytes | None = "k", *headers: tuple[str, str], method: str = "POST", path: str = "/charges",
        query: str = "", body: bytes | list[bytes] = b"{}",
    ) -> Reply:  # fmt: skip
        """Send a request, alice's unless the headers name another user. A list is a body that is sent in parts."""
        sent = list(headers)
        if not any(name == "X-User" for name, _ in sent):
            sent.append(ALICE)
        if key is not None:
            sent.append(("Idempotency-Key", key if isinstance(key, str) else key.decode("latin-1")))
        return self.exchange(sent, method, path, query, [body] if isinstance(body, bytes) else body)

    def exchange(self, headers: list[tuple[str, str]], method: str, path: str, query: str, body: list[bytes]) -> Reply:
        raise NotImplementedError


class Asgi(Stack):
    name = "asgi"

    def guard(self, store: eo.Store, default: Route | None = Route(), **options: Any) -> None:  # noqa: B008
        options.setdefault("principal", lambda scope: header(scope, "x-user"))
        self.app = self.outside(
            asgi.IdempotencyMiddleware(self.inside(self.application), store, default=default, **options)
        )

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        call = Call(scope["method"], scope["path"], scope["query_string"].decode(), headers, body)
        answer = self.handle(call)
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": raw})
        if isinstance(answer.body, bytes) and answer.then is None:
            await send({"type": "http.response.body", "body": answer.body})
            return
        for chunk in answer.chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})

    def exchange(self, headers: list[tuple[str, str]], method: str, path: str, query: str, body: list[bytes]) -> Reply:
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": raw, "client": ("192.0.2.1", 1234),
        }  # fmt: skip
        return asyncio.run(asgi_exchange(self.app, scope, body))


async def asgi_exchange(app: Any, scope: dict[str, Any], body: list[bytes]) -> Reply:
    parts = iter([*({"type": "http.request", "body": part, "more_body": True} for part in body[:-1])])
    last = iter([{"type": "http.request", "body": body[-1] if body else b""}])
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        for source in (parts, last):
            for message in source:
                return message
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(dict(message))

    await app(scope, receive, send)
    return make_reply(sent)


def make_reply(sent: list[dict[str, Any]]) -> Reply:
    """Make a reply from the messages of an ASGI response, which must be complete."""
    assert sent, "no response"
    assert sent[0]["type"] == "http.response.start"
    assert not sent[-1].get("more_body", False), "the response is not complete"
    chunks = [bytes(message.get("body", b"")) for message in sent[1:]]
    headers = [(name.decode(), value.decode("latin-1")) for name, value in sent[0]["headers"]]
    return Reply(sent[0]["status"], headers, b"".join(chunks), chunks)


def header(scope: Any, name: str) -> str | None:
    values = [value.decode("latin-1") for header_name, value in scope["headers"] if header_name == name.encode()]
    return values[0] if values else None


class Wsgi(Stack):
    name = "wsgi"

    def guard(self, store: eo.Store, default: Route | None = Route(), **options: Any) -> None:  # noqa: B008
        options.setdefault("principal", lambda environ: environ.get("HTTP_X_USER"))
        self.app = self.outside(
            wsgi.IdempotencyMiddleware(self.inside(self.application), store, default=default, **options)
        )

    def application(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        call = Call(
            environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"], headers,
            environ["wsgi.input"].read(),
        )  # fmt: skip
        answer = self.handle(call)
        start_response(f"{answer.status} Status", answer.headers)
        return [answer.body] if isinstance(answer.body, bytes) and answer.then is None else answer.chunks()

    def exchange(self, headers: list[tuple[str, str]], method: str, path: str, query: str, body: list[bytes]) -> Reply:
        raw = b"".join(body)
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": path.encode().decode("latin-1"),
            "QUERY_STRING": query, "SERVER_NAME": "shop", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "192.0.2.1", "CONTENT_LENGTH": str(len(raw)), "wsgi.input": io.BytesIO(raw),
            "wsgi.errors": sys.stderr, "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.multithread": True,
            "wsgi.multiprocess": True, "wsgi.run_once": False,
        }  # fmt: skip
        if len(body) > 1:  # as a server gives a chunked body
            del environ["CONTENT_LENGTH"]
            environ["wsgi.input_terminated"] = True
        for name, value in headers:  # servers join what is repeated
            name = "HTTP_" + name.upper().replace("-", "_")
            environ[name] = f"{environ[name]},{value}" if name in environ else value
        return wsgi_exchange(self.app, environ)


def wsgi_exchange(app: Any, environ: dict[str, Any]) -> Reply:
    head: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
        if exc_info is not None and head:
            raise exc_info[1]
        head[:] = [int(status.split()[0]), headers]
        return chunks.append

    chunks: list[bytes] = []
    result = app(environ, start_response)
    try:
        for chunk in result:
            assert head, "the body came before its headers"
            chunks.append(chunk)
    finally:
        if hasattr(result, "close"):
            result.close()
    return Reply(head[0], head[1], b"".join(chunks), chunks)


@pytest.fixture(params=[Asgi, Wsgi], ids=["asgi", "wsgi"])
def stack(request: pytest.FixtureRequest) -> Stack:
    stack: Stack = request.param()
    return stack


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def events() -> list[eo.Event]:
    return []


@pytest.fixture
def store(clock: ManualClock, events: list[eo.Event]) -> Iterator[eo.Store]:
    with eo.Store(MemoryStoreBackend(clock=clock), hooks=[events.append], sweep_every=None) as store:
        yield store
