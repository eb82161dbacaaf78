"""httpx: a transport that adds the key and keeps it over retries, sync and async."""

from __future__ import annotations

import time
from typing import Any

import anyio
import httpx

from effectonce.core.drive import drive
from effectonce.http.protocol import KEY

from .calls import Call, Settings

#: Failures after which the call may or may not have arrived. What cannot be sent at all is not among them.
UNSURE = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)


def _call(settings: Settings, request: httpx.Request) -> Call | None:
    """The call that ``request`` is, its key in the header; None where it needs none."""
    if request.method not in settings.methods:
        return None
    stream = request.stream
    body = b"".join(stream) if isinstance(stream, httpx.ByteStream) else None
    target = request.url.raw_path.decode("ascii")
    call = Call(settings, request.method, request.url.netloc.decode(), target, request.headers.get(KEY), body)
    request.headers[KEY] = call.key
    return call


class _Port:
    unsure: tuple[type[Exception], ...] = UNSURE

    def __init__(self, transport: httpx.BaseTransport, request: httpx.Request) -> None:
        self._transport = transport
        self._request = request

    async def send(self) -> httpx.Response:
        return self._transport.handle_request(self._request)

    async def body(self, response: httpx.Response) -> bytes:
        return response.read()

    async def close(self, response: httpx.Response) -> None:
        response.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it is driven by a thread that may block


class _AsyncPort:
    unsure: tuple[type[Exception], ...] = UNSURE

    def __init__(self, transport: httpx.AsyncBaseTransport, request: httpx.Request) -> None:
        self._transport = transport
        self._request = request

    async def send(self) -> httpx.Response:
        return await self._transport.handle_async_request(self._request)

    async def body(self, response: httpx.Response) -> bytes:
        return await response.aread()

    async def close(self, response: httpx.Response) -> None:
        await response.aclose()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class IdempotentTransport(httpx.BaseTransport):
    """``httpx.Client(transport=IdempotentTransport())``; ``transport`` is what it sends with, the usual one by default.

    Keyword arguments are those of `Settings`.
    """

    def __init__(self, transport: httpx.BaseTransport | None = None, **settings: Any) -> None:
        self._transport = transport or httpx.HTTPTransport()
        self._settings = Settings(**settings)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call = _call(self._settings, request)
        if call is None:
            return self._transport.handle_request(request)
        return drive(call.exchange(_Port(self._transport, request)))

    def close(self) -> None:
        self._transport.close()


class AsyncIdempotentTransport(httpx.AsyncBaseTransport):
    """`IdempotentTransport` for ``httpx.AsyncClient``."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None, **settings: Any) -> None:
        self._transport = transport or httpx.AsyncHTTPTransport()
        self._settings = Settings(**settings)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = _call(self._settings, request)
        if call is None:
            return await self._transport.handle_async_request(request)
        return await call.exchange(_AsyncPort(self._transport, request))

    async def aclose(self) -> None:
        await self._transport.aclose()
