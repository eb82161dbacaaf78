"""Logins with tokens, and settings of librdkafka, at a real broker."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

import effectonce as eo
from effectonce.errors import BrokerUnavailable, ConfigurationError, EffectOnceError
from tests.conftest import skip_or_fail
from tests.harness import installed
from tests.harness.kafka import Kafka, kafka
from tests.harness.process import free_port

pytestmark = pytest.mark.long

TOKENS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.fixture(scope="module")
def bearer() -> Iterator[str]:
    """The address of a broker that takes tokens: those without a signature, which Kafka has for tests."""
    port = free_port()
    try:
        server: Kafka = kafka(
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAIN:PLAINTEXT,BEARER:SASL_PLAINTEXT\n"
            f"listeners=PLAIN://{{at}}:{{port}},BEARER://{{at}}:{port},CONTROLLER://{{at}}:{{controller}}\n"
            f"advertised.listeners=PLAIN://{{at}}:{{port}},BEARER://{{at}}:{port}\n"
            "listener.name.bearer.sasl.enabled.mechanisms=OAUTHBEARER\n"
            f"listener.name.bearer.oauthbearer.sasl.jaas.config={TOKENS} required "
            'unsecuredLoginStringClaim_sub="broker";\n'
        )
    except installed.Missing as missing:
        skip_or_fail(str(missing))
    with server:
        yield f"127.0.0.1:{port}"


def make_token(lifetime: float = 600.0) -> str:
    now = time.time()
    claims = {"sub": "shop", "iat": now, "exp": now + lifetime}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims)]
    return b".".join([*parts, b""]).decode()


async def send_and_receive(broker: eo.Broker, queue: str) -> None:
    backend = broker.backend
    await backend.declare(queue, group="g")
    await broker.apublish(queue, eo.Message(data=1))
    consumer = backend.consumer(queue, group="g", prefetch=1)
    try:
        async with asyncio.timeout(60):
            while not (deliveries := await consumer.receive(1, 1.0)):
                pass
        assert await consumer.ack(deliveries) == [True]
    finally:
        await consumer.close()
        await broker.aclose()


async def test_a_function_returns_the_token(bearer: str, unique_name: str) -> None:
    broker = eo.connect_broker(f"kafka://{bearer}?tls=no", password=make_token)
    await send_and_receive(broker, unique_name)


async def test_an_identity_provider_returns_the_token(bearer: str, unique_name: str) -> None:
    asked: list[dict[str, Any]] = []

    class Provider(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            asked.append({**form, "login": base64.b64decode(self.headers["Authorization"].partition(" ")[2])})
            body = json.dumps({"access_token": make_token(), "token_type": "Bearer", "expires_in": 600}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    provider = HTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    try:
        url = (
            f"kafka://id:secret@{bearer}?tls=no&mechanism=OAUTHBEARER&scope=orders"
            f"&token_url=http://127.0.0.1:{provider.server_port}/token"
        )
        await send_and_receive(eo.connect_broker(url), unique_name)
    finally:
        provider.shutdown()
        provider.server_close()
    assert asked[0]["login"] == b"id:secret"
    assert asked[0]["scope"] == ["orders"]


async def test_a_token_that_the_broker_does_not_take_is_a_wrong_configuration(bearer: str, unique_name: str) -> None:
    broker = eo.connect_broker(f"kafka://{bearer}?tls=no&timeout=10s", password=lambda: make_token(-60.0))
    with pytest.raises(ConfigurationError):
        await broker.backend.declare(unique_name, group="g")


async def test_a_function_that_fails_is_an_outage_and_its_error_is_logged(
    bearer: str, unique_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def token() -> str:
        raise RuntimeError("the provider is away")

    broker = eo.connect_broker(f"kafka://{bearer}?tls=no&timeout=5s", password=token)
    with pytest.raises(BrokerUnavailable, match="no token"):
        await broker.backend.declare(unique_name, group="g")
    assert "the provider is away" in caplog.text


async def test_a_setting_of_librdkafka_is_passed_on(kafka_url: str, unique_name: str) -> None:
    await send_and_receive(eo.connect_broker(f"{kafka_url}?client.rack=eu-1&linger.ms=1"), unique_name)


@pytest.mark.parametrize("query", ["no.such.setting=1", "mechanism=GSSAPI&tls=no"])
async def test_what_this_librdkafka_cannot_do_is_a_wrong_configuration(kafka_url: str, query: str) -> None:
    """The wheels of the driver come without Kerberos; builds of one's own may have it."""
    broker = eo.connect_broker(f"{kafka_url}?{query}")
    for attempt in (broker.backend.declare("orders", group="g"), broker.apublish("orders", eo.Message(data=1))):
        with pytest.raises(EffectOnceError) as caught:
            await attempt
        assert isinstance(caught.value, ConfigurationError)
    await broker.aclose()
