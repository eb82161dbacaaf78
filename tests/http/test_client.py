"""The client's side: httpx, sync and async, and requests. What is said of all three is written once."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
import requests

import effectonce as eo
from effectonce.http import problem
from effectonce.http.client import Settings, step
from effectonce.http.client.for_httpx import AsyncIdempotentTransport, IdempotentTransport
from effectonce.http.client.for_requests import IdempotentAdapter
from effectonce.values.retry_after import parse_retry_after

Told = tuple[int, dict[str, str], bytes] | None  # None: the connection is cut


class Api:
    """A server that answers as told, in order, and keeps what it was sent."""

    def __init__(self, key: str = "Idempotency-Key") -> None:
        self.told: list[Told] = []
        self.seen: list[tuple[str, str | None, bytes]] = []
        self.key = key
        self.authorized: list[str | None] = []
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
                    while int(self.rfile.readline(), 16):
                        self.rfile.readline()
                api.seen.append((f"{self.command} {self.path}", self.headers.get(api.key), body))
                api.authorized.append(self.headers.get("Authorization"))
                told = api.told.pop(0) if api.told else (200, {}, b"ok")
                if told is None:
                    self.close_connection = True
                    return
                status, headers, content = told
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *_: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def keys(self) -> list[str | None]:
        return [key for _, key, _ in self.seen]

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.close()


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each pause would have been."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("effectonce.http.client.calls.time.sleep", pauses.append)
    monkeypatch.setattr("effectonce.http.client.for_httpx.anyio.sleep", sleep)
    return pauses


class Client:
    """One call with a client library of its own: status and body."""

    def __init__(self, library: str) -> None:
        self.library = library

    def call(
        self,
        url: str,
        *,
        method: str = "POST",
        body: Any = b"{}",
        headers: dict[str, str] | None = None,
        **settings: Any,
    ) -> tuple[int, bytes]:
        if self.library == "requests":
            with requests.Session() as session:
                session.mount("http://", IdempotentAdapter(Settings(**settings)))
                answer = session.request(method, url, data=body, headers=headers, timeout=10)
                return answer.status_code, answer.content
        if self.library == "httpx":
            inner = httpx.HTTPTransport(verify=False)  # no certificates to load
            with httpx.Client(
                transport=IdempotentTransport(inner, **settings), timeout=10, follow_redirects=True
            ) as client:
                response = client.request(method, url, content=body, headers=headers)
                return response.status_code, response.content

        async def acall() -> tuple[int, bytes]:
            inner = AsyncIdempotentTransport(httpx.AsyncHTTPTransport(verify=False), **settings)
            async with httpx.AsyncClient(transport=inner, timeout=10, follow_redirects=True) as client:
                response = await client.request(method, url, content=body, headers=headers)
                return response.status_code, response.content

        return asyncio.run(acall())


@pytest.fixture(params=["httpx", "httpx async", "requests"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(request.param)


UNSURE = (httpx.TransportError, requests.ConnectionError)


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
def test_what_changes_something_gets_a_key_of_its_own(client: Client, api: Api, method: str) -> None:
    for _ in range(2):
        assert client.call(api.url, method=method) == (200, b"ok")
    assert len({uuid.UUID(str(key)) for key in api.keys}) == 2


def test_what_changes_nothing_gets_none(client: Client, api: Api) -> None:
    client.call(api.url, method="GET", body=None)
    assert api.keys == [None]


def test_a_key_that_is_there_is_kept(client: Client, api: Api) -> None:
    client.call(api.url, headers={"idempotency-key": "mine"})
    assert api.keys == ["mine"]


@pytest.mark.parametrize(
    "failure",
    [
        None,
        (503, {}, b""),
        (429, {"Retry-After": "1"}, b""),
        (502, {}, b""),
        *((status, {"Retry-After": "0"}, b"") for status in (408, 425, 504)),
    ],
)
def test_the_key_never_changes_between_the_tries_of_one_call(
    client: Client, api: Api, slept: list[float], failure: Told
) -> None:
    api.told = [failure, failure]
    assert client.call(api.url, body=b"amount=7") == (200, b"ok")
    assert (len(set(api.keys)), [body for _, _, body in api.seen]) == (1, [b"amount=7"] * 3)
    assert len(slept) == 2


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_other_answers_are_final(client: Client, api: Api, status: int) -> None:
    api.told = [(status, {}, b"no")]
    assert client.call(api.url) == (status, b"no")
    assert len(api.seen) == 1


def test_the_key_stays_where_a_redirect_leads_and_while_that_is_tried_again(
    client: Client, api: Api, handler: Any, slept: list[float]
) -> None:
    moved = (307, {"Location": f"{api.url}/moved"}, b"")
    api.told = [moved, None, (503, {}, b""), (201, {}, b"charged")]
    assert client.call(f"{api.url}/charges") == (201, b"charged")
    assert (len(api.seen), len(set(api.keys))) == (4, 1)
    api.told = [moved, (201, {}, b""), moved, (201, {}, b"")]

    def work() -> None:
        client.call(f"{api.url}/charges")
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            handler(work, "order-1")
    assert (len(api.seen), len(set(api.keys))) == (8, 2)


def test_retries_are_bounded_and_the_last_failure_is_the_callers(client: Client, api: Api, slept: list[float]) -> None:
    api.told = [None] * 10
    with pytest.raises(UNSURE):
        client.call(api.url, retries=2)
    assert (len(api.seen), len(slept)) == (3, 2)
    api.told = [(503, {}, b"down")] * 10
    assert client.call(api.url, retries=1) == (503, b"down")


def test_unless_told_otherwise_a_call_is_tried_three_times_more_after_delays_that_double(
    client: Client, api: Api, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effectonce.http.client.calls.random.uniform", lambda least, most: (least + most) / 1.5)
    api.told = [None] * 10
    with pytest.raises(UNSURE):
        client.call(api.url)
    assert (len(api.seen), slept) == (4, pytest.approx([0.2, 0.4, 0.8]))


def test_retry_after_is_honoured_in_both_forms(client: Client, api: Api, slept: list[float]) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=9), usegmt=True)
    api.told = [
        (503, {"Retry-After": "7"}, b""),
        (503, {"Retry-After": "1.5"}, b""),
        (409, {"Retry-After": later}, b""),
    ]
    assert client.call(api.url)[0] == 200
    assert slept[:2] == [7, 1.5]
    assert 6 < slept[2] <= 9


@pytest.mark.parametrize("far", ["3600", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_retry_after_beyond_the_bound_is_not_waited_for(
    client: Client, api: Api, slept: list[float], far: str
) -> None:
    api.told = [(503, {"Retry-After": far}, b"down")]
    assert client.call(api.url, max_wait="10s") == (503, b"down")
    assert slept == []


@pytest.mark.parametrize("nonsense", ["soon", "-1", "1.", "", "Wed, 99 Foo 2026"])
def test_a_retry_after_that_cannot_be_read_is_none(client: Client, api: Api, slept: list[float], nonsense: str) -> None:
    api.told = [(503, {"Retry-After": nonsense}, b"")]
    assert client.call(api.url)[0] == 200
    assert slept[0] < 1


def told(error: eo.EffectOnceError) -> Told:
    response = problem(error)
    return response.status, dict(response.headers), response.body or b""


def test_in_progress_is_waited_for(client: Client, api: Api, slept: list[float]) -> None:
    """409 with Retry-After: the first try is still running; the next gets its response."""
    api.told = [told(eo.InProgress("busy", 20)), told(eo.InProgress("busy", 20))]
    assert client.call(api.url) == (200, b"ok")
    assert (slept, len(set(api.keys))) == ([1, 1], 1)


@pytest.mark.parametrize(
    ("answered", "raised"),
    [
        (eo.InProgress("busy", 20), eo.InProgress),
        (eo.LeaseLost("taken"), eo.InProgress),
        (eo.InDoubt("who knows"), eo.InDoubt),
        (eo.PayloadMismatch("other"), eo.PayloadMismatch),
        (eo.ResultNotStored("large"), eo.ResultNotStored),
        (eo.PermanentFailure("given up"), eo.PermanentFailure),
    ],
)
def test_409_and_422_of_this_protocol_are_understood(
    client: Client, api: Api, slept: list[float], answered: eo.EffectOnceError, raised: type[eo.EffectOnceError]
) -> None:
    api.told = [told(answered)] * 10
    with pytest.raises(raised) as caught:
        client.call(api.url, retries=1)
    assert type(caught.value) is raised
    assert len(api.seen) == (2 if raised is eo.InProgress else 1)
    assert client.call(api.url, retries=0, errors="return")[0] == problem(answered).status


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"code": 7}', b'{"code": "else"}', b'"\xff"'])
def test_422_and_409_of_others_are_responses_like_any_other(client: Client, api: Api, content: bytes) -> None:
    problem_json = {"Content-Type": "application/problem+json; charset=utf-8"}
    api.told = [(422, {"Content-Type": "application/json"}, content), (409, problem_json, content)]
    assert client.call(api.url) == (422, content)
    assert client.call(api.url) == (409, content)


def test_a_body_that_can_be_sent_once_is_sent_once(client: Client, api: Api, slept: list[float]) -> None:
    async def achunks() -> Any:
        yield b"once"

    api.told = [(503, {}, b"down")]
    assert client.call(api.url, body=achunks() if client.library == "httpx async" else iter([b"once"]))[0] == 503
    assert (len(api.seen), slept) == (1, [])


# -- in a guarded handler


@pytest.fixture
def handler(store: eo.Store) -> Callable[[Callable[[], Any], str], Any]:
    """Runs a piece of code as a guarded handler; when it raises, it may run again under the same key."""

    @eo.once(store, scope="orders", key="key", returns=None)
    def handle(work: Callable[[], Any], key: str) -> None:
        work()

    return handle


def test_a_handler_that_runs_again_calls_with_the_same_key(client: Client, api: Api, handler: Any) -> None:
    def work() -> None:
        client.call(f"{api.url}/charges?live=1", body=b"amount=7", retries=0)
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            handler(work, "order-1")
    with pytest.raises(ZeroDivisionError):
        handler(work, "order-2")
    first, again, other = api.keys
    assert first == again != other
    assert uuid.UUID(str(first)).version == 5


def test_the_key_is_bound_to_provider_account_address_and_step(client: Client, api: Api, handler: Any) -> None:
    def work() -> None:
        client.call(f"{api.url}/charges")
        client.call(f"{api.url}/refunds")
        client.call(f"{api.url}/charges", method="PATCH")
        client.call(f"{api.url}/charges", account="acme")
        client.call(f"{api.url}/charges", provider="stripe")
        with step("second"):
            client.call(f"{api.url}/charges")

    handler(work, "order-1")
    assert len(set(api.keys)) == 6


@pytest.mark.parametrize("second", [b"amount=7", b"amount=8"])
def test_a_second_call_to_one_address_is_refused_unless_it_says_that_it_is_another(
    client: Client, api: Api, handler: Any, second: bytes
) -> None:
    """The API would take it for a retry, and the second effect would be lost without a word."""

    def twice() -> None:
        client.call(api.url, body=b"amount=7")
        client.call(api.url, body=second)

    with pytest.raises(eo.ConfigurationError, match="step"):
        handler(twice, "order-1")
    assert len(api.seen) == 1


def test_a_retry_of_the_handlers_own_keeps_the_key(client: Client, api: Api, handler: Any) -> None:
    """After a failure the same call is a retry, whichever client makes it; another body under that key is not."""
    api.told = [None, (503, {}, b"")]

    def stubborn() -> None:
        with pytest.raises(UNSURE):
            client.call(api.url, retries=0)
        assert client.call(api.url, retries=0)[0] == 503
        with pytest.raises(eo.ConfigurationError):
            client.call(api.url, body=b"other", retries=0)
        assert client.call(api.url, retries=0)[0] == 200

    handler(stubborn, "order-1")
    assert (len(api.seen), len(set(api.keys))) == (3, 1)


def test_a_retry_after_half_an_answer_keeps_the_key(client: Client, api: Api, handler: Any) -> None:
    """The answer was lost on its way; the client has read the status, and the handler tries again by itself."""
    api.told = [(200, {"Content-Length": "10"}, b"half"), (200, {}, b"whole")]

    def stubborn() -> None:
        with pytest.raises((httpx.TransportError, requests.RequestException)):
            client.call(api.url)
        assert client.call(api.url) == (200, b"whole")

    handler(stubborn, "order-1")
    assert (len(api.keys), len(set(api.keys))) == (2, 1)


def test_a_body_that_nobody_can_compare_is_never_taken_for_a_retry(api: Api, handler: Any) -> None:
    client = Client("httpx")
    api.told = [(503, {}, b"")]

    def work() -> None:
        client.call(api.url, body=iter([b"one"]), retries=0)
        with pytest.raises(eo.ConfigurationError, match="step"):
            client.call(api.url, body=iter([b"two"]), retries=0)

    handler(work, "order-1")
    assert len(api.seen) == 1


def test_a_call_without_a_key_of_its_own_to_derive_from_gets_a_new_one(
    client: Client, api: Api, store: eo.Store
) -> None:
    @eo.once(store, scope="orders", key="key", on_missing_key="run", returns=None)
    def handle(key: str | None) -> None:
        client.call(api.url)

    handle(None)
    handle(None)
    assert len(set(api.keys)) == 2


def test_calls_of_an_async_handler_at_once(api: Api, store: eo.Store) -> None:
    """Each task has its step, all share the run."""

    @eo.once(store, scope="orders", key="key", returns=None)
    async def handle(key: str) -> None:
        async with httpx.AsyncClient(transport=AsyncIdempotentTransport()) as http:

            async def mail(name: str) -> None:
                with step(name):
                    await http.post(f"{api.url}/mails", json={"to": name})

            await asyncio.gather(*(mail(name) for name in ("alice", "bob", "carol")))
            with pytest.raises(eo.ConfigurationError):
                await asyncio.gather(*(http.post(f"{api.url}/same") for _ in range(2)))

    asyncio.run(handle("order-1"))
    mails = {json.loads(body)["to"]: key for line, key, body in api.seen if line == "POST /mails"}
    assert len(set(mails.values())) == 3


# -- and our own server


def test_the_client_and_the_middleware_understand_each_other(store: eo.Store) -> None:
    """The response is lost on its way; the retry of the transport gets it, and the charge happened once."""
    from effectonce.http.wsgi import IdempotencyMiddleware

    runs: list[int] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        runs.append(1)
        start_response("201 Created", [])
        return [b"receipt"]

    guarded = IdempotencyMiddleware(app, store, principal=eo.GLOBAL)
    inner, lost = httpx.WSGITransport(guarded), iter([True, True, False])

    class Losing(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response = inner.handle_request(request)
            if next(lost):
                raise httpx.ReadError("lost")
            return response

    with httpx.Client(transport=IdempotentTransport(Losing()), base_url="http://shop") as client:
        answer = client.post("/charges", json={"amount": 7})
    assert (answer.text, answer.headers["idempotent-replayed"], runs) == ("receipt", "true", [1])


@pytest.mark.parametrize("wrong", [{"retries": -1}, {"max_wait": "soon"}, {"errors": "ignore"}])
def test_a_wrong_setting_is_told_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(eo.ConfigurationError):
        IdempotentTransport(**wrong)


def test_no_retry_after_is_so_far_away_that_it_cannot_be_added_to_a_time() -> None:
    assert {parse_retry_after("9" * 400), parse_retry_after("Fri, 31 Dec 9999 23:59:59 GMT")} == {365 * 86_400}


def test_a_date_without_a_zone_is_utc() -> None:
    assert parse_retry_after("Sun, 06 Nov 1994 08:49:37 -0000") == 0
