"""httpx: a transport, sync or async, that gives calls an Idempotency-Key and retries them under it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any, Final

import anyio
import httpx

from effectonce.core.run_sync import run_sync
from effectonce.http.protocol import KEY_HEADER

from .calls import RESENDABLE_ERRORS, ClientPort, KeyedCall, Settings, sync_port
from .intent_log import IntentLog, LoggedRequest, LoggedResponse, send_with

#: Failures after which the call may or may not have arrived. Those that prevent sending at all are not among them.
AMBIGUOUS_ERRORS: Final[tuple[type[Exception], ...]] = (
    httpx.TimeoutException,
    httpx.NetworkError,
    httpx.RemoteProtocolError,
    httpx.ProxyError,
    *RESENDABLE_ERRORS,
)


class IdempotentTransport(httpx.BaseTransport):
    """``httpx.Client(transport=IdempotentTransport())``; it sends with ``transport``, by default httpx's own.

    With ``log``, each call that gets a key is recorded as an intent first. Keyword arguments are those of `Settings`.
    """

    def __init__(
        self, transport: httpx.BaseTransport | None = None, *, log: IntentLog | None = None, **settings: Any
    ) -> None:
        self._transport = transport or httpx.HTTPTransport()
        self._settings = Settings(**settings)
        self._log = log
        if log is not None:  # `_send_logged` needs the operation, and is called only with a log
            self._operation = log.operation(lambda logged, headers: self._fetch(_make_request(logged), headers))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call = _make_call(self._settings, request)
        if call is None:
            return self._transport.handle_request(request)
        if self._log is None:
            request.headers[KEY_HEADER] = call.key
            send = partial(self._transport.handle_request, request)
        else:
            send = partial(self._send_logged, request, _freeze(self._log, request), call.key)
        response: httpx.Response = run_sync(call.send(sync_port(send, httpx.Response.read, AMBIGUOUS_ERRORS)))
        response.stream = _CallStream(response, call)
        return response

    def _send_logged(self, request: httpx.Request, logged: LoggedRequest, key: str) -> httpx.Response:
        # The live request is sent as it is. An intent that is resumed later is rebuilt from the log (`_make_request`).
        with send_with(partial(self._fetch, request)):
            return _make_response(self._operation(logged, key=key))

    def _fetch(self, request: httpx.Request, headers: Mapping[str, str]) -> httpx.Response:
        response = self._transport.handle_request(_add_headers(request, headers))
        response.read()
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
        if log is not None:  # `_send_logged` needs the operation, and is called only with a log
            self._operation = log.async_operation(lambda logged, headers: self._fetch(_make_request(logged), headers))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = _make_call(self._settings, request)
        if call is None:
            return await self._transport.handle_async_request(request)
        if self._log is None:
            request.headers[KEY_HEADER] = call.key
            send = partial(self._transport.handle_async_request, request)
        else:
            send = partial(self._send_logged, request, _freeze(self._log, request), call.key)
        port = ClientPort(send, httpx.Response.aread, httpx.Response.aclose, anyio.sleep, AMBIGUOUS_ERRORS)
        response: httpx.Response = await call.send(port)
        response.stream = _CallStream(response, call)
        return response

    async def _send_logged(self, request: httpx.Request, logged: LoggedRequest, key: str) -> httpx.Response:
        # The live request is sent as it is. An intent that is resumed later is rebuilt from the log (`_make_request`).
        with send_with(partial(self._fetch, request)):
            return _make_response(await self._operation(logged, key=key))

    async def _fetch(self, request: httpx.Request, headers: Mapping[str, str]) -> httpx.Response:
        response = await self._transport.handle_async_request(_add_headers(request, headers))
        await response.aread()
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _CallStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of a response. If it breaks off, the response is lost, and the handler may make the call again."""

    def __init__(self, response: httpx.Response, call: KeyedCall) -> None:
        self._stream: Any = response.stream
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._stream
        except Exception:
            self._call.allow_retry()
            raise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                yield chunk
        except Exception:
            self._call.allow_retry()
            raise

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _make_call(settings: Settings, request: httpx.Request) -> KeyedCall | None:
    """Make the call that ``request`` stands for; None if it needs no key."""
    if request.method not in settings.methods:
        return None
    host, target = request.url.netloc.decode(), request.url.raw_path.decode("ascii")
    return KeyedCall(settings, request.method, host, target, request.headers.get(KEY_HEADER), _read_body(request))


def _read_body(request: httpx.Request) -> bytes | None:
    """Return the body; None if it can be read only once."""
    return b"".join(request.stream) if isinstance(request.stream, httpx.ByteStream) else None


def _freeze(log: IntentLog, request: httpx.Request) -> LoggedRequest:
    return log.freeze(request.method, str(request.url), request.headers.items(), _read_body(request))


def _add_headers(request: httpx.Request, headers: Mapping[str, str]) -> httpx.Request:
    """Return a copy of ``request`` with ``headers``. The request itself must not get the key: httpx follows a redirect
    with its headers, and the call to the new address is an intent of its own."""
    merged = request.headers.copy()
    merged.update(headers)
    return httpx.Request(
        request.method, request.url, headers=merged, stream=request.stream, extensions=request.extensions
    )


def _make_request(logged: LoggedRequest) -> httpx.Request:
    return httpx.Request(logged.method, logged.url, headers=logged.headers, content=logged.body)


def _make_response(logged: LoggedResponse) -> httpx.Response:
    return httpx.Response(logged.code, headers=logged.header_fields, content=logged.body)
