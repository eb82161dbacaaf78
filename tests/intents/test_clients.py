"""What real HTTP clients raise, against real sockets: some have sent the request before, and do not say so."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import aiohttp
import botocore.config
import botocore.session
import httpx
import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

import effectonce as eo
from effectonce.providers import classify, find_provider, is_ambiguous

STRIPE, TWILIO = find_provider("stripe"), find_provider("twilio")
Reply = bytes | None


def reply(status: int, body: str = "ok", length: int | None = None, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name}: {value}" for name, value in {"Connection": "close", **headers}.items()]
    return "\r\n".join([*lines, "", body]).encode()


class Server:
    """It executes every request that it gets, gives one reply after the other (None: a reset), and then is gone."""

    def __init__(self, *replies: Reply, keep_alive: bool = False) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self.executed: list[str] = []
        self._replies = list(replies)
        self._keep_alive = keep_alive
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._replies:
            connection, _ = self._listener.accept()
            with connection:
                self._talk(connection)
        self._listener.close()

    def _talk(self, connection: socket.socket) -> None:
        while self._replies:
            request = self._read(connection)
            if not request:
                return
            self.executed.append(request.partition(b" ")[0].decode())
            answer = self._replies.pop(0)
            if not self._replies:
                self._listener.close()
            if answer is None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            connection.sendall(answer)
            if not self._keep_alive:
                return

    def _read(self, connection: socket.socket) -> bytes:
        """A whole request: what is left unread would make the end of the connection a reset."""
        got = b""
        while b"\r\n\r\n" not in got:
            more = connection.recv(65536)
            if not more:
                return b""
            got += more
        head, _, body = got.partition(b"\r\n\r\n")
        sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        while sizes and len(body) < int(sizes[0].partition(b":")[2]):
            body += connection.recv(65536)
        return got

    def close(self) -> None:
        self._replies.clear()
        self._listener.close()


@pytest.fixture
def serving() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def serve(*replies: Reply, keep_alive: bool = False) -> Server:
        servers.append(Server(*replies, keep_alive=keep_alive))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


@pytest.fixture
def closed_url() -> str:
    """The address of a port that no server listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/"


def session(**retry: Any) -> requests.Session:
    made = requests.Session()
    made.trust_env = False
    if retry:
        made.mount("http://", HTTPAdapter(max_retries=Retry(allowed_methods=None, **retry)))
    return made


def raised(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


# -- a client that tries again by itself


CLIENTS = {
    "requests": lambda url: session(total=2).post(url, data=b"x"),
    "requests, connect=False": lambda url: session(total=2, connect=False).post(url, data=b"x"),
    "urllib3": lambda url: urllib3.PoolManager(retries=Retry(2, allowed_methods=None)).request("POST", url, body=b"x"),
    "urllib3's pool": lambda url: urllib3.connection_from_url(url).urlopen(
        "POST", "/", body=b"x", retries=Retry(2, allowed_methods=None)
    ),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_refused_after_a_retry_of_its_own_says_nothing_of_the_first(
    client: str, serving: Callable[..., Server]
) -> None:
    """It executed, reset the connection and went down; the client's second try is refused."""
    server = serving(None)
    error = raised(lambda: CLIENTS[client](server.url))
    assert server.executed == ["POST"]
    verdict = classify(TWILIO, error)
    assert (verdict.kind, "sent it before" in verdict.why) == ("unknown", True)
    assert is_ambiguous(error)


@pytest.mark.parametrize(
    "client",
    [
        lambda url: session().post(url, data=b"x"),
        lambda url: session(total=False).post(url, data=b"x"),
        *CLIENTS.values(),
        lambda url: urllib3.PoolManager(retries=False).request("POST", url, body=b"x"),
        lambda url: httpx.post(url, content=b"x", trust_env=False),
        lambda url: httpx.Client(transport=httpx.HTTPTransport(retries=2)).post(url, content=b"x"),
        lambda url: urllib.request.urlopen(url, b"x"),
    ],
)
def test_refused_from_the_first_try_on_it_never_left(client: Callable[[str], Any], closed_url: str) -> None:
    error = raised(lambda: client(closed_url))
    assert classify(TWILIO, error).kind == "not_executed"
    assert not is_ambiguous(error)
    assert is_ambiguous(error, resend=True)


def test_what_lost_its_traceback_shows_nothing(closed_url: str) -> None:
    """It came from another process, say."""
    error = raised(lambda: session().post(closed_url))
    while error is not None:
        error.__traceback__ = None
        last, error = error, error.args[0] if isinstance(error.args[0], Exception) else None  # type: ignore[assignment]
    assert classify(TWILIO, requests.exceptions.ConnectTimeout()).kind == "unknown"
    assert classify(TWILIO, requests.exceptions.ConnectionError(last)).kind == "unknown"


@pytest.mark.parametrize(
    ("replies", "retry", "verdict"),
    [
        ([reply(429)], {}, "not_executed"),
        ([reply(401)], {"total": 2}, "not_executed"),
        ([None, reply(429)], {"total": 2}, "unknown"),
        ([None, reply(401)], {"total": 2}, "unknown"),
        ([None, reply(404)], {"total": 2}, "unknown"),
        ([None, reply(402)], {"total": 2}, "failure"),
        ([reply(503), reply(429)], {"total": 1, "status_forcelist": [503]}, "unknown"),
        ([reply(429), reply(401)], {"total": 1, "status_forcelist": [429]}, "not_executed"),
    ],
)
def test_an_answer_after_retries_of_its_own_is_one_to_a_resend(
    replies: list[Reply], retry: Any, verdict: str, serving: Callable[..., Server]
) -> None:
    """Rule 4."""
    server = serving(*replies)
    answer = session(**retry).post(server.url, data=b"x")
    assert len(server.executed) == len(replies)
    assert classify(STRIPE, answer).kind == verdict
    error = raised(answer.raise_for_status)
    assert classify(STRIPE, error).kind == verdict
    assert is_ambiguous(error) is (verdict == "unknown")
    wrapped = ValueError("the charge failed")
    wrapped.__cause__ = error
    assert is_ambiguous(wrapped) is (verdict == "unknown")


def test_without_a_key_no_answer_says_anything_of_the_try_before(serving: Callable[..., Server]) -> None:
    answer = session(total=2).post(serving(None, reply(402)).url, data=b"x")
    assert classify(TWILIO, answer).kind == "unknown"


def test_an_answer_of_urllib3_itself(serving: Callable[..., Server]) -> None:
    answer = CLIENTS["urllib3"](serving(None, reply(429)).url)
    assert classify(STRIPE, answer).kind == "unknown"


@pytest.mark.parametrize(("attempts", "verdict"), [(1, "not_executed"), (2, "unknown")])
def test_botocore_tries_again_too(attempts: int, verdict: str, serving: Callable[..., Server], closed_url: str) -> None:
    server = serving(None) if attempts == 2 else None
    made = botocore.session.Session().create_client(
        "ses",
        region_name="eu-west-1",
        endpoint_url=server.url if server else closed_url,
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=botocore.config.Config(retries={"total_max_attempts": attempts}),
    )
    error = raised(lambda: made.send_raw_email(RawMessage={"Data": b"x"}))
    assert type(error).__name__ == "EndpointConnectionError"
    assert classify(find_provider("ses"), error).kind == verdict
    assert is_ambiguous(error) is (verdict == "unknown")


async def test_aiohttp_tries_what_is_idempotent_once_more(serving: Callable[..., Server], closed_url: str) -> None:
    server = serving(reply(200, Connection="keep-alive"), None, keep_alive=True)
    async with aiohttp.ClientSession() as client:
        async with client.delete(server.url) as answer:
            await answer.read()
        with pytest.raises(aiohttp.ClientConnectorError) as after:
            await client.delete(server.url)
        with pytest.raises(aiohttp.ClientConnectorError) as at_once:
            await client.post(closed_url)
        with pytest.raises(aiohttp.ClientConnectorError) as at_once_too:
            await client.delete(closed_url)
    assert server.executed == ["DELETE", "DELETE"]
    assert classify(TWILIO, after.value).kind == "unknown"
    assert classify(TWILIO, at_once.value).kind == "not_executed"
    assert classify(TWILIO, at_once_too.value).kind == "not_executed"


@pytest.mark.parametrize(("method", "verdict"), [("post", "not_executed"), ("put", "unknown")])
async def test_aiohttp_does_not_tell_in_its_answers(method: str, verdict: str, serving: Callable[..., Server]) -> None:
    async with aiohttp.ClientSession() as client, client.request(method, serving(reply(429)).url) as answer:
        assert classify(STRIPE, answer).kind == verdict
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            answer.raise_for_status()
    assert classify(STRIPE, caught.value).kind == verdict


# -- redirects


@pytest.mark.parametrize(
    "client",
    [
        lambda url: session().post(url, data=b"x"),
        lambda url: httpx.post(url, content=b"x", follow_redirects=True, trust_env=False),
        lambda url: urllib.request.urlopen(url, b"x"),
        lambda url: urllib3.PoolManager().request("POST", url, body=b"x"),
    ],
)
@pytest.mark.parametrize(("status", "verdict"), [(303, "unknown"), (302, "unknown")])
def test_refused_where_it_was_redirected_to(
    client: Callable[[str], Any], status: int, verdict: str, serving: Callable[..., Server], closed_url: str
) -> None:
    """ "See other" is what a server says when it has done it."""
    server = serving(reply(status, Location=closed_url))
    error = raised(lambda: client(server.url))
    assert classify(TWILIO, error).kind == verdict
    assert is_ambiguous(error)


def test_what_is_not_found_where_it_was_redirected_to(serving: Callable[..., Server]) -> None:
    there = serving(reply(404), reply(404))
    answer = session().post(serving(reply(303, Location=there.url)).url, data=b"x")
    assert classify(STRIPE, answer).kind == "unknown"
    answer = session().get(serving(reply(302, Location=there.url)).url)
    assert classify(STRIPE, answer).kind == "failure"


# -- a reply that is cut


@pytest.mark.parametrize(
    "client",
    [
        lambda url: urllib.request.urlopen(url, b"x").read(),
        lambda url: session().post(url, data=b"x"),
        lambda url: httpx.post(url, content=b"x", trust_env=False),
        lambda url: urllib3.PoolManager(retries=False).request("POST", url, body=b"x"),
    ],
)
@pytest.mark.parametrize("answer", [reply(200, "{", 100), b"HTTP/1.1 20", b"", None])
def test_a_reply_that_is_cut_leaves_it_open(
    client: Callable[[str], Any], answer: Reply, serving: Callable[..., Server]
) -> None:
    server = serving(answer)
    error = raised(lambda: client(server.url))
    assert server.executed == ["POST"]
    assert is_ambiguous(error)
    assert classify(STRIPE, error).kind == "unknown"


def test_a_reply_without_a_head_leaves_it_open(serving: Callable[..., Server]) -> None:
    server = serving(b"nonsense\r\n\r\n")
    error = raised(lambda: urllib.request.urlopen(server.url, b"x"))
    assert isinstance(error, http.client.BadStatusLine)
    assert is_ambiguous(error)


# -- and what that means


@pytest.mark.parametrize("cut", [None, reply(200, "{", 100)])
def test_a_saga_does_not_give_up_a_charge_that_may_have_happened(cut: Reply, serving: Callable[..., Server]) -> None:
    server = serving(cut)
    saga = eo.Saga("order", eo.connect("memory://", sweep_every=None), input=str)

    @saga.step()
    def charge(order: str) -> str:
        if cut is None:
            return session(total=2).post(server.url, data=b"x").text
        with urllib.request.urlopen(server.url, b"x") as answer:
            return str(answer.read())

    with pytest.raises(eo.OutcomeUnknown):
        saga.run("o-1", "x")
    assert server.executed == ["POST"]


def test_a_saga_that_could_not_connect_has_failed(closed_url: str) -> None:
    saga = eo.Saga("order", eo.connect("memory://", sweep_every=None), input=str)

    @saga.step()
    def charge(order: str) -> str:
        return session().post(closed_url, data=b"x").text

    with pytest.raises(eo.SagaFailed):
        saga.run("o-1", "x")


def test_at_most_once_is_not_sent_again_after_a_hidden_send(serving: Callable[..., Server]) -> None:
    servers = [serving(None), serving(reply(200))]
    left = list(servers)
    intents = eo.Intents(eo.connect("memory://", sweep_every=None), scope="sms")

    @intents.operation("twilio", "sms", without_key="at-most-once")
    def sms(intent: eo.Intent[str]) -> str:
        return session(total=2).post(left.pop(0).url, data=b"x").text

    for _ in range(2):
        with pytest.raises(eo.InDoubt):
            sms("hello", key="1")
    assert [server.executed for server in servers] == [["POST"], []]


# -- Stripe's own retries, as its source has them


def stripe_module(name: str, source: str) -> Any:
    module = ModuleType(f"stripe.{name}")
    exec(source, module.__dict__)
    return module


class StripeError(Exception):
    http_status: int | None = None


class RateLimitError(StripeError):
    http_status = 429


class APIConnectionError(StripeError):
    pass


for _kind in (StripeError, RateLimitError, APIConnectionError):
    _kind.__module__ = "stripe._error"


HTTP_CLIENT = stripe_module(
    "_http_client",
    """
def _request_with_retries_internal(send, retries):
    num_retries = 0
    while True:
        try:
            return send()
        except Exception as error:
            if num_retries >= retries:
                raise
            num_retries += 1
""",
)
REQUESTOR = stripe_module(
    "_api_requestor",
    """
def request(requestor, options, error):
    raise error
""",
)


class Requestor:
    def __init__(self, retries: int | None) -> None:
        self._options = self
        self.max_network_retries = retries


@pytest.mark.parametrize(("retries", "verdict"), [(0, "not_executed"), (2, "unknown")])
def test_stripe_refused_after_its_own_retries(retries: int, verdict: str, closed_url: str) -> None:
    def send() -> None:
        try:
            session().post(closed_url)
        except requests.RequestException as error:
            raise APIConnectionError("no connection") from error

    error = raised(lambda: HTTP_CLIENT._request_with_retries_internal(send, retries))
    assert classify(STRIPE, error).kind == verdict


@pytest.mark.parametrize(
    ("default", "options", "verdict"),
    [
        (0, None, "not_executed"),
        (2, {"max_network_retries": 0}, "not_executed"),
        (2, None, "unknown"),
        (2, {}, "unknown"),
        (0, {"max_network_retries": 1}, "unknown"),
        (None, None, "unknown"),
    ],
)
def test_a_429_of_stripe_is_the_first_answer_only_where_it_may_not_try_again(
    default: int | None, options: Any, verdict: str
) -> None:
    error = raised(lambda: REQUESTOR.request(Requestor(default), options, RateLimitError()))
    assert classify(STRIPE, error).kind == verdict
