"""What is ASGI's own: disconnects, cancellation, streams, extensions, a herd on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import effectonce as eo
from effectonce.core.codec import decode_error
from effectonce.core.guarded_call.run import current_run
from effectonce.http import Route
from effectonce.http.asgi import IdempotencyMiddleware
from effectonce.testing import ManualClock
from tests.harness.faulty_store import FaultyBackend, GroupedBackend

from .conftest import Reply, make_reply

App = Callable[[Any, Any, Any], Awaitable[None]]


def request_scope(key: str = "k", *headers: tuple[bytes, bytes], **more: Any) -> dict[str, Any]:
    return {
        "type": "http", "method": "POST", "path": "/charges", "query_string": b"",
        "headers": [(b"idempotency-key", key.encode()), *headers], **more,
    }  # fmt: skip


class Client:
    """One exchange by hand: what it sends is queued, what it gets is kept, and it can leave at any time."""

    def __init__(self, app: Any, *body: bytes, scope: dict[str, Any] | None = None, raises: bool = False) -> None:
        self.sent: list[dict[str, Any]] = []
        self.left = asyncio.Event()
        self.got = asyncio.Event()
        self._raises = raises  # as ASGI 2.4 lets servers do, once the client has left
        self._body = [{"type": "http.request", "body": part, "more_body": True} for part in body[:-1]]
        self._body.append({"type": "http.request", "body": body[-1] if body else b""})
        self._scope = scope or request_scope()
        self._app = app

    async def receive(self) -> dict[str, Any]:
        if self._body:
            return self._body.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if self.left.is_set():
            if self._raises:
                raise OSError("the client has left")
            return
        self.sent.append(dict(message))
        self.got.set()

    async def exchange(self) -> Reply:
        await self._app(self._scope, self.receive, self.send)
        return make_reply(self.sent)

    def begin(self) -> asyncio.Task[Reply]:
        return asyncio.create_task(self.exchange())


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"receipt"})


def guarded(app: App, store: eo.Store, default: Route | None = None) -> IdempotencyMiddleware:
    return IdempotencyMiddleware(app, store, principal=eo.GLOBAL, default=default or Route())


# -- disconnects


@pytest.mark.parametrize("raises", [False, True])
async def test_a_client_that_leaves_does_not_stop_the_work_its_retry_will_ask_for(
    store: eo.Store, raises: bool
) -> None:
    """Line 20: neither the handler nor the settlement learns of it."""
    heard: list[Any] = []
    runs: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(1)
        await receive()
        listening = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        client.left.set()
        await asyncio.sleep(0)
        for part in (b"two ", b"three "):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        assert not listening.done()
        await send({"type": "http.response.body", "body": b"four"})
        heard.append(await listening)

    middleware = guarded(app, store)
    client = Client(middleware, raises=raises)
    with pytest.raises(AssertionError, match="not complete"):
        await client.exchange()
    again = await Client(middleware).exchange()
    assert (again.body, again.replayed, runs) == (b"one two three four", True, [1])
    assert heard == [{"type": "http.disconnect"}]  # once its response is complete


@pytest.mark.parametrize(("on_error", "state"), [("doubt", "in_doubt"), ("release", "free"), ("replay", "done")])
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("leaves_at", [2, 20])
async def test_a_stream_too_long_to_keep_ends_with_its_client(
    store: eo.Store, on_error: Any, state: str, raises: bool, leaves_at: int
) -> None:
    """Line 14: else it would run for ever, without a client. What it was is the route's choice."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        listening = None if raises else asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 100, "more_body": True})
            if number == leaves_at:
                client.left.set()
            await asyncio.sleep(0)
            if listening is not None and listening.done():
                return
        raise AssertionError("it went on")

    client = Client(guarded(app, store, Route(max_response=1000, on_error=on_error)), raises=raises)
    with pytest.raises(OSError if raises else AssertionError, match="left" if raises else "not complete"):
        await client.exchange()
    assert [record.state for record in store.list().records] == [state]


async def test_whoever_waits_for_the_client_of_such_a_stream_learns_that_it_left(store: eo.Store) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 1001, "more_body": True})
        client.left.set()
        assert await asyncio.wait_for(receive(), 60) == {"type": "http.disconnect"}
        await send({"type": "http.response.body"})

    client = Client(guarded(app, store, Route(max_response=1000)))
    with pytest.raises(AssertionError, match="not complete"):
        await client.exchange()
    assert [record.state for record in store.list().records] == ["in_doubt"]


@pytest.mark.parametrize("parts", [0, 1, 2])
async def test_a_client_that_leaves_in_its_body_has_claimed_nothing(store: eo.Store, parts: int) -> None:
    messages = [{"type": "http.request", "body": b"x", "more_body": True}] * parts + [{"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(*_: Any) -> None:
        raise AssertionError("it ran")

    await guarded(app, store)(request_scope(), receive, send)
    assert (sent, store.list().records) == ([], [])


# -- the application ends without a whole response


async def test_a_record_in_doubt_names_the_status_that_left_it_so(store: eo.Store) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 502, "headers": []})
        await send({"type": "http.response.body"})

    assert (await Client(guarded(app, store)).exchange()).status == 502
    (record,) = store.list().records
    assert (record.state, decode_error(record.error).message) == ("in_doubt", "status 502")


@pytest.mark.parametrize("sends", [0, 1, 2])
async def test_an_application_that_returns_too_early_is_in_doubt(store: eo.Store, sends: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if sends > 0:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        if sends > 1:
            await send({"type": "http.response.body", "body": b"half", "more_body": True})

    client = Client(guarded(app, store))
    with pytest.raises(AssertionError):
        await client.exchange()
    assert [record.state for record in store.list().records] == ["in_doubt"]


@pytest.mark.parametrize(("on_error", "state"), [("doubt", "in_doubt"), ("release", "free"), ("replay", "done")])
async def test_f16_a_cancelled_request_is_settled_and_stays_cancelled(
    store: eo.Store, on_error: Any, state: str
) -> None:
    """asgi-idempotency-header answered 409 for ever after one."""
    begun = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = Client(guarded(app, store, Route(on_error=on_error))).begin()
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [record.state for record in store.list().records] == [state]


async def test_f16_cancelled_at_every_await_it_never_runs_twice_and_never_wedges(clock: ManualClock) -> None:
    """Every await of the first request is interrupted once; the retry finds done, doubt or a free key."""
    for steps in range(40):
        backend = GroupedBackend(clock)
        store = eo.Store(backend, sweep_every=None)
        runs: list[int] = []

        async def app(scope: Any, receive: Any, send: Any, runs: list[int] = runs) -> None:
            await asyncio.sleep(0)
            runs.append(1)
            await plain(scope, receive, send)

        middleware = guarded(app, store)
        task = Client(middleware).begin()
        for _ in range(steps):
            await asyncio.sleep(0)
        finished = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(20):
            await asyncio.sleep(0)  # what was given back, or goes on without its caller
        retry = await Client(middleware).exchange()
        if retry.status == 200:
            assert len(runs) == 1
        else:
            assert (retry.code, len(runs) <= 1) == ("in-doubt", True)
        if finished:
            assert retry.replayed
            return
    raise AssertionError("the request never finished")


async def test_f15_a_herd_on_one_key_runs_once_with_bounded_store_calls(clock: ManualClock) -> None:
    """A thousand requests at once: one execution, the others get its response, a handful of round trips."""
    operations: list[Any] = []
    backend = GroupedBackend(clock)
    backend.after = operations.append
    runs: list[int] = []
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(1)
        await release.wait()
        await plain(scope, receive, send)

    store = eo.Store(backend, sweep_every=None)
    middleware = guarded(app, store, Route(wait="60s"))
    herd = [Client(middleware).begin() for _ in range(1000)]
    while sum(len(wakes) for wakes in store.runtime.waiters.waiting.values()) < 999:  # noqa: ASYNC110
        await asyncio.sleep(0)
    release.set()
    replies = await asyncio.gather(*herd)
    assert (len(runs), {reply.body for reply in replies}) == (1, {b"receipt"})
    assert sum(reply.replayed for reply in replies) == 999
    assert len(operations) < 100


async def test_work_after_the_response_is_not_part_of_it(store: eo.Store) -> None:
    """Starlette's background tasks: what they raise does not unsettle what was sent."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await plain(scope, receive, send)
        with pytest.raises(eo.ConfigurationError):
            eo.current()
        raise ZeroDivisionError

    client = Client(guarded(app, store))
    with pytest.raises(ZeroDivisionError):
        await client.exchange()
    assert make_reply(client.sent).status == 200
    assert [record.state for record in store.list().records] == ["done"]
    assert (current_run.get(), store.runtime.leased_runs) == (None, set())


# -- streams


async def test_a_stream_goes_out_as_it_comes(store: eo.Store) -> None:
    """Only its last part waits: the others are with the client before the application goes on."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(3):
            await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
            assert client.sent[-1]["body"] == b"%d" % number
        await send({"type": "http.response.body"})

    client = Client(guarded(app, store))
    assert (await client.exchange()).body == b"012"


async def test_what_a_client_could_take_for_the_end_waits_for_the_record(store: eo.Store) -> None:
    """Line 20: with a Content-Length, the client knows that it has all before the server says so."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        assert client.sent[-1]["body"] == b"one"
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        assert client.sent[-1]["body"] == b"one"
        await send({"type": "http.response.body"})

    client = Client(guarded(app, store))
    assert (await client.exchange()).body == b"onetwo"


@pytest.mark.parametrize("status", [204, 304])
async def test_headers_that_are_the_whole_response_wait_for_the_record(store: eo.Store, status: int) -> None:
    """Line 20: no body follows, so the client knows that it has all when it has the headers."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        assert client.sent == []
        await send({"type": "http.response.body"})

    client = Client(guarded(app, store))
    assert (await client.exchange()).status == status


async def test_a_method_in_lower_case_is_guarded_too(store: eo.Store) -> None:
    """uvicorn passes it on as it came, and an application may read it as what it means."""
    replies = [
        await Client(guarded(plain, store), scope={**request_scope("k"), "method": method}).exchange()
        for method in ("post", "POST")
    ]
    assert [reply.replayed for reply in replies] == [False, True]


async def test_a_body_over_the_cap_is_not_read_to_its_end(store: eo.Store) -> None:
    """It may have none. One that says how long it is, is not read at all."""
    read: list[int] = []
    sent: list[Any] = []

    async def endless() -> Any:
        read.append(1)
        assert len(read) < 100
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    middleware = guarded(plain, store, Route(max_body=1000))
    await middleware(request_scope(), endless, send)
    assert (sent[0]["status"], len(read)) == (413, 11)
    for length in (b"1001", b"9" * 5000):
        await middleware(request_scope("k", (b"content-length", length)), endless, send)
        assert (sent[-2]["status"], len(read)) == (413, 11)


async def test_bodies_that_would_bypass_the_record_are_not_offered(store: eo.Store) -> None:
    """A server that sends files by itself would send what was not recorded."""
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope["extensions"])
        await plain(scope, receive, send)

    offered: dict[str, Any] = {
        "http.response.pathsend": {},
        "http.response.trailers": {},
        "http.response.debug": {"info": {}},
    }
    scope = request_scope(extensions=offered)
    await Client(guarded(app, store), scope=scope).exchange()
    assert seen == {"http.response.debug": {"info": {}}}
    assert scope["extensions"] is offered


async def test_other_messages_pass(store: eo.Store) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.debug", "info": 1})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"receipt"})

    client = Client(guarded(app, store))
    with pytest.raises(AssertionError):
        await client.exchange()
    assert [message["type"] for message in client.sent] == [
        "http.response.debug", "http.response.start", "http.response.body",
    ]  # fmt: skip


async def test_two_paths_that_read_alike_are_told_apart_by_their_bytes(store: eo.Store) -> None:
    """A server reads invalid UTF-8 as U+FFFD; under one key that is a mismatch, never another's response."""
    middleware = guarded(plain, store)
    first = request_scope(path="/�", raw_path=b"/%ff")
    other = request_scope(path="/�", raw_path=b"/%fe")
    assert (await Client(middleware, scope=first).exchange()).status == 200
    assert (await Client(middleware, scope=other).exchange()).status == 422


# -- the principal


async def test_an_async_scope_function_is_awaited(store: eo.Store) -> None:
    async def user(scope: Any) -> str:
        await asyncio.sleep(0)
        return "alice"

    middleware = IdempotencyMiddleware(plain, store, principal=user)
    assert [(await Client(middleware).exchange()).replayed for _ in range(2)] == [False, True]


async def test_what_the_scope_function_raises_is_the_applications_to_answer(store: eo.Store) -> None:
    def user(scope: Any) -> str:
        raise PermissionError

    with pytest.raises(PermissionError):
        await Client(IdempotencyMiddleware(plain, store, principal=user)).exchange()


async def test_a_scope_function_that_names_nobody_is_a_bug_that_is_logged(
    store: eo.Store, caplog: pytest.LogCaptureFixture
) -> None:
    middleware = IdempotencyMiddleware(plain, store, principal=lambda scope: 1.5)  # type: ignore[arg-type,return-value]
    assert (await Client(middleware).exchange()).status == 503
    assert "principal= gave a float" in caplog.text


async def test_an_application_that_calls_itself_with_its_own_key_does_not_wait_for_itself(store: eo.Store) -> None:
    """F72: it is in progress, and that is what the inner request is told."""
    inner: list[Reply] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        inner.append(await Client(middleware).exchange())
        await plain(scope, receive, send)

    middleware = guarded(app, store, Route(wait="30s"))
    assert (await Client(middleware).exchange()).status == 200
    assert (inner[0].status, inner[0].code) == (409, "in-progress")


async def test_a_response_without_a_status_is_no_response(clock: ManualClock) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": b"x"})

    store = eo.Store(FaultyBackend(clock))
    with pytest.raises(AssertionError):
        await Client(guarded(app, store)).exchange()
    assert [record.state for record in store.list().records] == ["in_doubt"]


@pytest.mark.parametrize("routes", [{"/orders": {"required": True}}, {"/orders": "required"}, {"/orders": Route}])
def test_what_is_not_a_route_is_refused_with_what_to_write(store: eo.Store, routes: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"is not a route; write Route\(required=True\)"):
        IdempotencyMiddleware(plain, store, principal=eo.GLOBAL, routes=routes)
