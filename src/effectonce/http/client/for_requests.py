"""requests: an adapter that adds the key and keeps it over retries."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from effectonce.core.drive import drive
from effectonce.http.protocol import KEY

from .calls import Call, Settings

#: Failures after which the call may or may not have arrived.
UNSURE = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


class _Port:
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

    Other keyword arguments are those of `requests.adapters.HTTPAdapter`.
    """

    def __init__(self, idempotency: Settings | None = None, **options: Any) -> None:
        self._settings = idempotency or Settings()
        super().__init__(**options)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        method = request.method or "GET"
        if method not in self._settings.methods:
            return super().send(request, *args, **kwargs)
        body = request.body.encode() if isinstance(request.body, str) else request.body or b""
        call = Call(
            self._settings,
            method,
            urlsplit(str(request.url)).netloc.rpartition("@")[2],
            request.path_url,
            request.headers.get(KEY),
            body if isinstance(body, bytes) else None,
        )
        request.headers[KEY] = call.key
        sending = super().send
        return drive(call.exchange(_Port(lambda: sending(request, *args, **kwargs))))
