"""requests: an adapter that gives calls an Idempotency-Key and retries them under it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from effectonce.core.run_sync import run_sync
from effectonce.http.protocol import KEY_HEADER

from .calls import RESENDABLE_ERRORS, KeyedCall, Settings, sync_port
from .intent_log import IntentLog, LoggedRequest, LoggedResponse, send_with

#: Failures after which the call may or may not have arrived.
AMBIGUOUS_ERRORS: Final[tuple[type[Exception], ...]] = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    *RESENDABLE_ERRORS,
)


class IdempotentAdapter(HTTPAdapter):
    """``session.mount("https://", IdempotentAdapter())``; ``idempotency`` are its `Settings`.

    With ``log``, each call that gets a key is recorded as an intent first. Other keyword arguments are those of
    `requests.adapters.HTTPAdapter`.
    """

    def __init__(self, idempotency: Settings | None = None, *, log: IntentLog | None = None, **options: Any) -> None:
        self._settings = idempotency or Settings()
        self._log = log
        if log is not None:
            self._operation = log.operation(self._resend)
        super().__init__(**options)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        method = request.method or "GET"
        if method not in self._settings.methods:
            return super().send(request, *args, **kwargs)
        content = request.body.encode() if isinstance(request.body, str) else request.body or b""
        body = content if isinstance(content, bytes) else None  # None: it can be read only once
        host = urlsplit(str(request.url)).netloc.rpartition("@")[2]
        call = KeyedCall(self._settings, method, host, request.path_url, request.headers.get(KEY_HEADER), body)
        if self._log is None:
            request.headers[KEY_HEADER] = call.key
            response = self._exchange(call, partial(super().send, request, *args, **kwargs))
            return _watch_body(response, call)
        logged = self._log.freeze(method, str(request.url), request.headers.items(), body)
        send = super().send

        def fetch(headers: Mapping[str, str]) -> requests.Response:
            # A copy: requests follows a redirect with these headers, and the call to the new address is another intent.
            sent = request.copy()
            sent.headers.update(headers)
            return _with_body(send(sent, *args, **kwargs))

        def send_logged() -> requests.Response:
            with send_with(fetch):
                return self._make_response(request, self._operation(logged, key=call.key))

        return self._exchange(call, send_logged)

    def _exchange(self, call: KeyedCall, send: Any) -> requests.Response:
        port = sync_port(send, lambda response: response.content, AMBIGUOUS_ERRORS)
        response: requests.Response = run_sync(call.send(port))
        return response

    def _resend(self, logged: LoggedRequest, headers: Mapping[str, str]) -> requests.Response:
        """Send a call that a recovery resumes."""
        headers = {**dict(logged.headers), **headers}
        request = requests.Request(logged.method, logged.url, headers=headers, data=logged.body)
        return _with_body(super().send(request.prepare()))

    def _make_response(self, request: requests.PreparedRequest, logged: LoggedResponse) -> requests.Response:
        raw = urllib3.HTTPResponse(
            io.BytesIO(logged.body), headers=dict(logged.header_fields), status=logged.code, preload_content=False
        )
        response: requests.Response = self.build_response(request, raw)
        return response


def _with_body(response: requests.Response) -> requests.Response:
    _ = response.content  # reads it from the connection
    return response


def _watch_body(response: requests.Response, call: KeyedCall) -> requests.Response:
    """Let the handler make the call again if the body breaks off: the response is lost then."""
    read = response.iter_content

    def iter_content(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from read(*args, **kwargs)
        except Exception:
            call.allow_retry()
            raise

    response.iter_content = iter_content  # type: ignore[method-assign]
    return response
