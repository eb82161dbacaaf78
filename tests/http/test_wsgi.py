"""What is WSGI's own: bodies without a length, iterables that are closed early, `write`, lists."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import effectonce as eo
from effectonce.http import Route
from effectonce.http.wsgi import IdempotencyMiddleware
from effectonce.record import Batchable, Settlement
from effectonce.testing import ManualClock
from tests.harness.faulty_store import FaultyBackend, down, fine

from .conftest import Wsgi, wsgi_exchange


def environ(body: bytes = b"{}", **more: Any) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "PATH_INFO": "/charges", "QUERY_STRING": "",
        "HTTP_IDEMPOTENCY_KEY": "k", "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body), **more,
    }  # fmt: skip


def guarded(app: Any, store: eo.Store, default: Route | None = None) -> IdempotencyMiddleware:
    return IdempotencyMiddleware(app, store, principal=eo.GLOBAL, default=default or Route())


def state(store: eo.Store) -> list[str]:
    return [record.state for record in store.list().records]


class Body:
    """An iterable with an end to count."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = iter(chunks)
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return self.chunks

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_closed_early_it_takes_the_rest_from_the_application(store: eo.Store, taken: int) -> None:
    """Line 20: the client is gone, its retry will ask."""
    body = Body(b"one ", b"two ", b"three")

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return body

    middleware = guarded(app, store)
    result = iter(middleware(environ(), lambda *_: print))
    for _ in range(taken):
        next(result)
    result.close()  # type: ignore[attr-defined]
    assert (body.closed, state(store)) == (1, ["done"])
    again = wsgi_exchange(middleware, environ())
    assert (again.body, again.replayed) == (b"one two three", True)


@pytest.mark.parametrize(("on_error", "left"), [("doubt", "in_doubt"), ("release", "free"), ("replay", "done")])
def test_a_stream_too_long_to_keep_ends_with_its_client(store: eo.Store, on_error: Any, left: str) -> None:
    """Line 14."""
    sent: list[int] = []

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        for number in range(1000):
            sent.append(number)
            yield b"x" * 100

    result = iter(guarded(app, store, Route(max_response=1000, on_error=on_error))(environ(), lambda *_: print))
    next(result)
    result.close()  # type: ignore[attr-defined]
    assert (len(sent), state(store)) == (11, [left])


def test_an_application_may_write_instead_of_returning(store: eo.Store) -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        write = start_response("201 Created", [("Content-Type", "text/plain")])
        write(b"written ")
        return [b"returned"]

    middleware = guarded(app, store)
    for replayed in (False, True):
        reply = wsgi_exchange(middleware, environ())
        assert (reply.status, reply.body, reply.replayed) == (201, b"written returned", replayed)


def test_an_application_may_start_when_it_is_iterated(store: eo.Store) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        yield b""
        start_response("201 Created", [])
        yield b"late"

    reply = wsgi_exchange(guarded(app, store), environ())
    assert (reply.status, reply.body) == (201, b"late")


def test_an_application_may_change_its_mind_before_its_first_bytes(store: eo.Store) -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            start_response("422 Unprocessable Content", [], (type(error), error, error.__traceback__))
            return [b"sorry"]

    middleware = guarded(app, store)
    assert [wsgi_exchange(middleware, environ()).status for _ in range(2)] == [422, 422]


def test_an_error_after_the_first_bytes_is_raised_by_the_server(store: eo.Store) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"half"
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            start_response("500 Internal Server Error", [], (type(error), error, error.__traceback__))

    with pytest.raises(ZeroDivisionError):
        wsgi_exchange(guarded(app, store), environ())
    assert state(store) == ["in_doubt"]


def test_a_list_stays_a_list(store: eo.Store) -> None:
    """A server tells the length of one by itself."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"one"]

    middleware = guarded(app, store)
    assert middleware(environ(), lambda *_: print) == [b"one"]
    assert middleware(environ(), lambda *_: print) == [b"one"]


def test_an_application_that_never_starts_is_in_doubt(store: eo.Store) -> None:
    with pytest.raises((AssertionError, ValueError, IndexError)):
        wsgi_exchange(guarded(lambda environ, start_response: [b"x"], store), environ())
    assert state(store) == ["in_doubt"]


@pytest.mark.parametrize(
    ("body", "about"),
    [
        (b"half", {"CONTENT_LENGTH": "8"}),
        (b"", {"CONTENT_LENGTH": "1"}),
        (b"x", {"CONTENT_LENGTH": "-1"}),
        (b"x", {"CONTENT_LENGTH": "one"}),
        (b"x", {"CONTENT_LENGTH": "¹"}),
    ],
)
def test_a_body_that_is_not_whole_claims_nothing(store: eo.Store, body: bytes, about: dict[str, str]) -> None:
    """The client went away in the middle of it, or lies about its length."""
    reply = wsgi_exchange(guarded(None, store), environ(body, **about))
    assert (reply.status, store.list().records) == (400, [])


@pytest.mark.parametrize("error", [OSError("invalid chunk header"), ValueError("no number"), EOFError()])
def test_a_body_that_cannot_be_read_claims_nothing(store: eo.Store, error: Exception) -> None:
    """A broken chunk, a reset: 400, and never a 500 of ours."""

    class Broken:
        def read(self, size: int) -> bytes:
            raise error

    about = {**environ(CONTENT_LENGTH=""), "wsgi.input": Broken(), "wsgi.input_terminated": True}
    reply = wsgi_exchange(guarded(None, store), about)
    assert (reply.status, store.list().records) == (400, [])


def test_a_method_in_lower_case_is_guarded_too(store: eo.Store) -> None:
    """Flask reads "post" as POST, so it would run unprotected."""
    runs: list[int] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        runs.append(1)
        start_response("200 OK", [])
        return [b"ok"]

    middleware = guarded(app, store)
    replies = [wsgi_exchange(middleware, environ(REQUEST_METHOD=method)) for method in ("post", "POST")]
    assert ([reply.replayed for reply in replies], runs) == ([False, True], [1])


def test_a_body_that_claims_to_be_endless_is_too_large(store: eo.Store) -> None:
    assert wsgi_exchange(guarded(None, store), environ(CONTENT_LENGTH="9" * 5000)).status == 413


def test_without_a_length_or_an_end_there_is_no_body(store: eo.Store) -> None:
    """PEP 3333: an input without a length is not to be read, it might never end."""

    class Endless:
        def read(self, size: int) -> bytes:
            raise AssertionError("it blocks for ever")

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["wsgi.input"].read()]

    about = {**environ(CONTENT_LENGTH=""), "wsgi.input": Endless()}
    assert wsgi_exchange(guarded(app, store), about).body == b""


def test_a_list_that_cannot_be_recorded_is_not_sent(clock: ManualClock) -> None:
    """Line 20, where the server would tell the length."""
    backend = FaultyBackend(clock)
    backend.before = lambda op: down(op) if getattr(op, "state", "") == "done" else None

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"one", b"two"]

    reply = wsgi_exchange(guarded(app, eo.Store(backend)), environ())
    assert (reply.status, reply.code) == (503, "store-unavailable")


def test_what_a_client_could_take_for_the_end_waits_for_the_record(store: eo.Store) -> None:
    """Line 20: with a Content-Length, the client knows that it has all before the server says so."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "6")])
        yield b"one"
        yield b"two"
        assert state(store) == ["claimed"]
        yield b""

    result = iter(guarded(app, store)(environ(), lambda *_: print))
    assert (next(result), state(store)) == (b"one", ["claimed"])
    assert (next(result), state(store)) == (b"two", ["done"])


def test_f15_threads_on_one_key_run_it_once(clock: ManualClock) -> None:
    runs: list[int] = []
    store = eo.connect("memory://")
    everyone = threading.Barrier(32)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        runs.append(1)
        start_response("200 OK", [])
        return [b"receipt"]

    middleware = guarded(app, store, Route(wait="30s"))
    replies: list[bytes] = []

    def request() -> None:
        everyone.wait(30)
        replies.append(wsgi_exchange(middleware, environ()).body)

    threads = [threading.Thread(target=request) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (runs, set(replies), len(replies)) == ([1], {b"receipt"}, 32)


def test_f77_a_time_limit_that_ends_while_the_response_is_recorded_reaches_the_server() -> None:
    """It is no failure of the store: the response is recorded, and the retry gets it."""

    def on_signal(number: int, frame: Any) -> None:
        raise TimeoutError("the time limit of the request is over")

    def interrupt(op: Batchable) -> None:
        if isinstance(op, Settlement):
            backend.before = fine
            signal.raise_signal(signal.SIGALRM)

    backend = FaultyBackend(ManualClock())
    stack = Wsgi()
    stack.guard(eo.Store(backend))
    before = signal.signal(signal.SIGALRM, on_signal)
    try:
        backend.before = interrupt  # type: ignore[assignment]
        with pytest.raises(TimeoutError, match="time limit"):
            stack.request()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert stack.request().replayed
