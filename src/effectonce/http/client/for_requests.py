"""requests: an adapter that adds the key and keeps it over retries."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from effectonce.core.run_sync import run_sync
from effectonce.http.protocol import KEY

from .calls import UNSETTLED, KeyedCall, Settings
from .intent_log import IntentLog, LoggedRequest, LoggedResponse, live

#: Failures after which the call may or may not have arrived.
UNSURE = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError, *UNSETTLED)


class _RequestsPort:
    unsure: tuple[type[Exception], ...] = UNSURE

    def __init__(self, send: Any) -> None:
        self._send = send

    async def send(self) -> requests.Response:
        response: requests.Response = self._send()
        return response

    async def body(self, response: requests.Response) -> bytes:
        return response.content

    async def close(self, response: requests.Response) -> None:
        response.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it is driven by a thread that may block


class IdempotentAdapter(HTTPAdapter):
    """``session.mount("https://", IdempotentAdapter())``; ``idempotency`` are its `Settings`.

    With ``log``, each call that gets a key is written down as an intent. Other keyword arguments are those of
    `requests.adapters.HTTPAdapter`.
    """

    def __init__(self, idempotency: Settings | None = None, *, log: IntentLog | None = None, **options: Any) -> None:
        self._settings = idempotency or Settings()
        self._log = log
        if log is not None:
            self._operation = log.operation(self._again)
        super().__init__(**options)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        method = request.method or "GET"
        if method not in self._settings.methods:
            return super().send(request, *args, **kwargs)
        given = request.body.encode() if isinstance(request.body, str) else request.body or b""
        body = given if isinstance(given, bytes) else None
        host = urlsplit(str(request.url)).netloc.rpartition("@")[2]
        call = KeyedCall(self._settings, method, host, request.path_url, request.headers.get(KEY), body)
        sending = super().send
        if self._log is None:
            request.headers[KEY] = call.key
            return _watched(run_sync(call.exchange(_RequestsPort(lambda: sending(request, *args, **kwargs)))), call)
        frozen = self._log.frozen(method, str(request.url), request.headers.items(), body)

        def send(headers: Mapping[str, str]) -> requests.Response:
            # As a copy: what its answer redirects to is an intent of its own, also when that comes from the log.
            sent = request.copy()
            sent.headers.update(headers)
            return _read(sending(sent, *args, **kwargs))

        def logged() -> requests.Response:
            return self._response(request, live(send, lambda: self._operation(frozen, key=call.key)))

        return run_sync(call.exchange(_RequestsPort(logged)))

    def _again(self, told: LoggedRequest, headers: Mapping[str, str]) -> requests.Response:
        """Send what a recovery has found."""
        request = requests.Request(told.method, told.url, headers={**dict(told.headers), **headers}, data=told.body)
        return _read(super().send(request.prepare()))

    def _response(self, request: requests.PreparedRequest, answer: LoggedResponse) -> requests.Response:
        raw = urllib3.HTTPResponse(
            io.BytesIO(answer.body), headers=dict(answer.headed), status=answer.code, preload_content=False
        )
        response: requests.Response = self.build_response(request, raw)
        return response


def _read(response: requests.Response) -> requests.Response:
    _ = response.content
    return response


def _watched(response: requests.Response, call: KeyedCall) -> requests.Response:
    """A body that breaks off is an answer that was lost: the handler may call again."""
    read = response.iter_content

    def iter_content(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from read(*args, **kwargs)
        except Exception:
            call.failed()
            raise

    response.iter_content = iter_content  # type: ignore[method-assign]
    return response
