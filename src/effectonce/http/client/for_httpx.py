"""httpx: a transport that adds the key and keeps it over retries, sync and async."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio
import httpx

from effectonce.core.run_sync import run_sync
from effectonce.http.protocol import KEY
from effectonce.intents.operations import IntentOperation

from .calls import UNSETTLED, KeyedCall, Settings
from .intent_log import IntentLog, LoggedRequest, LoggedResponse, alive, live

#: Failures after which the call may or may not have arrived. What cannot be sent at all is not among them.
UNSURE = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError, *UNSETTLED)


def _call(settings: Settings, request: httpx.Request) -> KeyedCall | None:
    """The call that ``request`` is, its key in the header; None where it needs none."""
    if request.method not in settings.methods:
        return None
    body = _body(request)
    target = request.url.raw_path.decode("ascii")
    call = KeyedCall(settings, request.method, request.url.netloc.decode(), target, request.headers.get(KEY), body)
    request.headers[KEY] = call.key
    return call


def _body(request: httpx.Request) -> bytes | None:
    """None where it can be read only once."""
    return b"".join(request.stream) if isinstance(request.stream, httpx.ByteStream) else None


def _frozen(log: IntentLog, request: httpx.Request, call: KeyedCall) -> LoggedRequest:
    """The call as it is written down. The key of one that brought none is the intent's, in the provider's own field."""
    if not call.brought:
        del request.headers[KEY]
    return log.frozen(request.method, str(request.url), request.headers.items(), _body(request))


def _rebuilt(request: LoggedRequest, headers: Mapping[str, str]) -> httpx.Request:
    return httpx.Request(
        request.method, request.url, headers={**dict(request.headers), **headers}, content=request.body
    )


def _response(answer: LoggedResponse) -> httpx.Response:
    return httpx.Response(answer.code, headers=answer.headed, content=answer.body)


class _HttpxPort:
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


class _LoggedHttpxPort(_HttpxPort):
    """Sends what was written down before."""

    def __init__(
        self,
        transport: httpx.BaseTransport,
        request: httpx.Request,
        call: KeyedCall,
        log: IntentLog,
        operation: IntentOperation[LoggedRequest, Any],
    ) -> None:
        super().__init__(transport, request)
        self._frozen = _frozen(log, request, call)
        self._call = call
        self._operation = operation

    async def send(self) -> httpx.Response:
        return _response(live(self._sent, lambda: self._operation(self._frozen, key=self._call.key)))

    def _sent(self, headers: Mapping[str, str]) -> httpx.Response:
        with _wearing(self._request, headers):
            return _read(self._transport, self._request)


class _AsyncHttpxPort:
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


class _AsyncLoggedHttpxPort(_AsyncHttpxPort):
    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        request: httpx.Request,
        call: KeyedCall,
        log: IntentLog,
        operation: IntentOperation[LoggedRequest, Any],
    ) -> None:
        super().__init__(transport, request)
        self._frozen = _frozen(log, request, call)
        self._call = call
        self._operation = operation

    async def send(self) -> httpx.Response:
        return _response(await alive(self._sent, lambda: self._operation(self._frozen, key=self._call.key)))

    async def _sent(self, headers: Mapping[str, str]) -> httpx.Response:
        with _wearing(self._request, headers):
            return await _aread(self._transport, self._request)


@contextmanager
def _wearing(request: httpx.Request, headers: Mapping[str, str]) -> Iterator[None]:
    """With ``headers``, for as long as it is sent: a call that its answer redirects to is an intent of its own, whether
    that answer was sent or comes from the log."""
    before = request.headers.copy()
    request.headers.update(headers)
    try:
        yield
    finally:
        request.headers = before


def _read(transport: httpx.BaseTransport, request: httpx.Request) -> httpx.Response:
    response = transport.handle_request(request)
    response.read()
    return response


async def _aread(transport: httpx.AsyncBaseTransport, request: httpx.Request) -> httpx.Response:
    response = await transport.handle_async_request(request)
    await response.aread()
    return response


class _Reading(httpx.SyncByteStream):
    """The body of an answer. One that breaks off is an answer that was lost: the handler may call again."""

    def __init__(self, response: httpx.Response, call: KeyedCall) -> None:
        self._stream: Any = response.stream
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._stream
        except Exception:
            self._call.failed()
            raise

    def close(self) -> None:
        self._stream.close()


class _AsyncReading(httpx.AsyncByteStream):
    def __init__(self, response: httpx.Response, call: KeyedCall) -> None:
        self._stream: Any = response.stream
        self._call = call

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                yield chunk
        except Exception:
            self._call.failed()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()


class IdempotentTransport(httpx.BaseTransport):
    """``httpx.Client(transport=IdempotentTransport())``; ``transport`` is what it sends with, the usual one by default.

    With ``log``, each call that gets a key is written down as an intent. Keyword arguments are those of `Settings`.
    """

    def __init__(
        self, transport: httpx.BaseTransport | None = None, *, log: IntentLog | None = None, **settings: Any
    ) -> None:
        self._transport = transport or httpx.HTTPTransport()
        self._settings = Settings(**settings)
        self._log = log
        if log is not None:
            self._operation = log.operation(lambda told, headers: _read(self._transport, _rebuilt(told, headers)))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call = _call(self._settings, request)
        if call is None:
            return self._transport.handle_request(request)
        port = _HttpxPort(self._transport, request)
        if self._log is not None:
            port = _LoggedHttpxPort(self._transport, request, call, self._log, self._operation)
        response = run_sync(call.exchange(port))
        response.stream = _Reading(response, call)
        return response

    def close(self) -> None:
        self._transport.close()


class AsyncIdempotentTransport(httpx.AsyncBaseTransport):
    """`IdempotentTransport` for ``httpx.AsyncClient``."""

    def __init__(
        self, transport: httpx.AsyncBaseTransport | None = None, *, log: IntentLog | None = None, **settings: Any
    ) -> None:
        self._transport = transport or httpx.AsyncHTTPTransport()
        self._settings = Settings(**settings)
        self._log = log
        if log is not None:
            self._operation = log.async_operation(
                lambda told, headers: _aread(self._transport, _rebuilt(told, headers))
            )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = _call(self._settings, request)
        if call is None:
            return await self._transport.handle_async_request(request)
        port = _AsyncHttpxPort(self._transport, request)
        if self._log is not None:
            port = _AsyncLoggedHttpxPort(self._transport, request, call, self._log, self._operation)
        response = await call.exchange(port)
        response.stream = _AsyncReading(response, call)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()
