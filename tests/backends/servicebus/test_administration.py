"""Creating and checking queues with a shared key, by the real SDK: over HTTP, against a peer of ours."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, quote_plus

import pytest
from aiohttp import web
from azure.core.pipeline.transport import AioHttpTransport

from effectonce.backends.servicebus import queues
from effectonce.backends.servicebus.broker import ServiceBusBackend
from effectonce.backends.servicebus.client import ServiceBusNamespace
from effectonce.errors import ConfigurationError
from effectonce.values.urls import Address

KEY = "canary/key="
URL = "servicebus://Root:canary%2Fkey%3D@name.servicebus.windows.net"


def is_signed(token: str) -> bool:
    """Whether the token is a shared access signature of our key, as the service checks it."""
    fields = {name: values[0] for name, values in parse_qs(token.removeprefix("SharedAccessSignature ")).items()}
    signed = f"{quote_plus(fields['sr'])}\n{fields['se']}".encode()
    expected = base64.b64encode(hmac.new(KEY.encode(), signed, hashlib.sha256).digest()).decode()
    return token.startswith("SharedAccessSignature ") and (fields["skn"], fields["sig"]) == ("Root", expected)


@pytest.fixture
async def created(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, bytes]]:
    """The queues of a service that wants signed requests. It answers with the entry that created a queue."""
    entries: dict[str, bytes] = {}

    async def handle(request: web.Request) -> web.Response:
        if not is_signed(request.headers.get("Authorization", "")):
            return web.Response(status=401)
        queue = request.match_info["queue"]
        if request.method == "PUT":
            if queue in entries:
                return web.Response(status=409)
            entries[queue] = await request.read()
            return web.Response(status=201, body=entries[queue], content_type="application/atom+xml")
        if queue not in entries:
            return web.Response(status=404)
        return web.Response(body=entries[queue], content_type="application/atom+xml")

    application = web.Application()
    application.router.add_route("*", "/{queue}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    send = AioHttpTransport.send

    async def send_to_peer(self: Any, request: Any, **options: Any) -> Any:
        assert request.url.startswith("https://name.servicebus.windows.net/")
        request.url = request.url.replace("https://name.servicebus.windows.net", f"http://127.0.0.1:{port}")
        return await send(self, request, **options)

    async def open_nothing(namespace: ServiceBusNamespace, queue: str) -> None:
        return None

    monkeypatch.setattr(AioHttpTransport, "send", send_to_peer)
    monkeypatch.setattr(queues, "_open_sender", open_nothing)  # AMQP: test_broker
    yield entries
    await runner.cleanup()


async def test_a_queue_is_created_and_checked_with_a_shared_key(created: dict[str, bytes]) -> None:
    backend = ServiceBusBackend(Address(f"{URL}?ack_window=2m&sessions=yes"))
    for _ in range(2):  # the second time it exists
        await backend.declare("orders", group="workers")
    await backend.check("orders", group="workers")
    assert b"PT2M" in created["orders"]
    with pytest.raises(ConfigurationError, match="requires sessions"):
        await ServiceBusBackend(Address(URL)).check("orders", group="workers")


async def test_a_wrong_key_is_refused(created: dict[str, bytes]) -> None:
    wrong = ServiceBusBackend(Address("servicebus://Root:wrong@name.servicebus.windows.net"))
    with pytest.raises(ConfigurationError, match="refuses this identity"):
        await wrong.declare("orders", group="workers")
    assert created == {}
