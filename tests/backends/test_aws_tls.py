"""TLS at an endpoint of one's own in place of AWS, as a private gateway has it."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import pytest

import effectonce as eo
from tests.backends.test_tls import ask_store, ask_store_async
from tests.harness.certificates import Authority

pytestmark = pytest.mark.quick_on("dynamodb", "sqs")

URLS = {"dynamodb": "dynamodb://records", "dynamodb_async": "dynamodb://records", "sqs": "sqs://"}


class Failing(BaseHTTPRequestHandler):
    """Answers every request with a failure of the service, so that a client that got through TLS sees that."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that does not trust us hangs up."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def port(authority: Authority) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("localhost"))
    server = QuietServer(("127.0.0.1", 0), Failing)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(params=URLS)
def ask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, port: int) -> Callable[..., None]:
    """Make a call at an endpoint on a host, with options."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")

    def ask_broker(url: str) -> None:
        asyncio.run(close_after(eo.connect_broker(url)))

    async def close_after(broker: eo.Broker) -> None:
        try:
            await broker.apublish("orders", eo.Message(data=1))
        finally:
            await broker.aclose()

    call = {"dynamodb": ask_store, "dynamodb_async": ask_store_async, "sqs": ask_broker}[request.param]

    def ask(host: str = "localhost", **options: object) -> None:
        query = {"region": "eu-west-1", "endpoint": f"https://{host}:{port}", **options}
        call(f"{URLS[request.param]}?{urlencode(query)}")

    return ask


def test_an_endpoint_with_a_trusted_certificate_is_called(ask: Callable[..., None], authority: Authority) -> None:
    with pytest.raises(eo.Retryable):  # the answer of `Failing`
        ask(ca_file=authority.ca_file)
    with pytest.raises(eo.Retryable):
        ask(verify="no")


def test_an_untrusted_certificate_is_a_wrong_configuration_not_an_outage(ask: Callable[..., None]) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"is not trusted.*ca_file="):
        ask()


def test_a_certificate_for_another_name_is_a_wrong_configuration(
    ask: Callable[..., None], authority: Authority
) -> None:
    with pytest.raises(eo.ConfigurationError, match="for another name"):
        ask("127.0.0.1", ca_file=authority.ca_file)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("endpoint=http://h&tls=yes", "leave tls out"),
        ("tls=no", "leave tls out"),
        ("endpoint=http://h&ca_file=/x", "add tls=yes"),
        ("server_name=x", "no server_name"),
        ("verify=ca", "no verify=ca"),
        ("ca_file=/none", "cannot be used"),
    ],
)
def test_options_that_the_sdk_cannot_keep_are_refused(query: str, said: str) -> None:
    with pytest.raises(eo.InvalidOption, match=said):
        eo.connect(f"dynamodb://records?region=eu-west-1&{query}")
