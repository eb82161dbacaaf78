"""A log of HTTP calls: each is recorded as an intent before it is sent, so that a crash leaves no call unknown.

    calls = IntentLog(eo.Intents(store, scope="billing"), "stripe")
    client = httpx.Client(transport=IdempotentTransport(log=calls))

Each call that gets a key is an intent: it is committed, sent under its key, and its response is committed. When a
handler runs again and makes the same call, it gets that response, and nothing is sent. A call that a crash interrupted
is resumed by `Intents.recover`, or waits in doubt for `Intents.resolve`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from msgspec import Struct

from effectonce.errors import ConfigurationError
from effectonce.http.protocol import KEY_HEADER, Headers
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent, IntentOperation
from effectonce.providers import Provider, classify, find_provider

#: The request headers that are logged: they are the same whenever the call is made, and hold no credential.
LOGGED_HEADERS: Final = frozenset(("content-type", "content-encoding", "accept"))
#: Response headers about the bytes on the wire; only the decoded body is stored.
WIRE_HEADERS: Final = frozenset(("content-length", "content-encoding", "transfer-encoding", "connection", "keep-alive"))


class LoggedRequest(Struct, frozen=True):
    """A call as it is recorded in its intent, and sent again."""

    method: str
    url: str
    headers: Headers
    body: bytes


class LoggedResponse(Struct, frozen=True):
    """The response to a call as its intent stores it.

    Its fields must not be named as those of a response (``status_code``): `classify` would then judge it once more.
    """

    code: int
    header_fields: Headers
    body: bytes


class AmbiguousResponse(Exception):
    """Carries a ``response`` that leaves open whether the call took effect; `Intents` classifies it."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"the API answered {response.status_code}")
        self.response = response


SendRequest = Callable[[Mapping[str, str]], Any]
Resend = Callable[[LoggedRequest, Mapping[str, str]], Any]

#: Sends the call that a client is making now, given the headers with its key. None while a recovery resumes a call.
_live_send: ContextVar[SendRequest | None] = ContextVar("effectonce_live_call", default=None)


class IntentLog:
    """The log of one client's calls.

    ``provider`` and ``operation`` name the calls, and ``options`` are those of `Intents.operation` (``window``, if the
    provider does not say how long it keeps keys). ``headers`` are request headers to log beside content type and
    accept. Credentials are never logged: ``credentials`` returns them for the calls that a recovery sends. Without it
    the API refuses those calls, and they stay unfinished.
    """

    def __init__(
        self,
        intents: Intents,
        provider: str | Provider,
        operation: str = "calls",
        *,
        headers: Iterable[str] = (),
        credentials: Callable[[], Mapping[str, str]] | None = None,
        **options: Any,
    ) -> None:
        self._provider = find_provider(provider)
        if self._provider.carrier == "body":
            raise ConfigurationError(
                f"{self._provider.name} takes its key in the body, which your code writes: make the call in an "
                "operation of Intents, and put intent.provider_key there"
            )
        self._register = intents.operation(self._provider, operation, returns=LoggedResponse, **options)
        self._logged_headers = LOGGED_HEADERS | {KEY_HEADER} | {name.lower() for name in headers}
        self._credentials = credentials or dict[str, str]

    def operation(self, resend: Resend) -> IntentOperation[LoggedRequest, Any]:
        """Make the intent operation of a sync client. ``resend`` sends the calls that a recovery resumes."""

        def call(intent: Intent[LoggedRequest]) -> LoggedResponse:
            return self._read_answer(self._send(intent, resend), intent)

        return self._register(call)

    def async_operation(self, resend: Resend) -> IntentOperation[LoggedRequest, Any]:
        """`operation`, for an async client."""

        async def call(intent: Intent[LoggedRequest]) -> LoggedResponse:
            return self._read_answer(await self._send(intent, resend), intent)

        return self._register(call)

    def freeze(self, method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> LoggedRequest:
        """Make the request that is logged for a call."""
        if body is None:
            raise ConfigurationError("a body that can be read only once cannot be logged; pass it as bytes")
        logged = [(name.lower(), value) for name, value in headers if name.lower() in self._logged_headers]
        return LoggedRequest(method, url, sorted(logged), body)

    def _send(self, intent: Intent[LoggedRequest], resend: Resend) -> Any:
        """Send a call: by the client that makes it, or in a recovery by ``resend``, with the credentials. Add the key,
        unless the request has one of its own."""
        has_own_key = any(name == KEY_HEADER for name, _ in intent.request.headers)
        key = {} if has_own_key else intent.headers
        send = _live_send.get()
        if send is not None:
            return send(key)
        return resend(intent.request, {**self._credentials(), **key})

    def _read_answer(self, response: Any, intent: Intent[LoggedRequest]) -> LoggedResponse:
        """Make what is stored of ``response``, whose body has been read. A refusal is stored like a success."""
        status = response.status_code
        verdict = classify(self._provider, response, intent.send_count > 1)
        if not 300 <= status < 400 and verdict.kind not in ("success", "failure"):
            raise AmbiguousResponse(response)
        headers = [(name, value) for name, value in response.headers.items() if name.lower() not in WIRE_HEADERS]
        return LoggedResponse(status, headers, response.content)


@contextmanager
def send_with(send: SendRequest) -> Iterator[None]:
    """Make the operation that is called inside use ``send`` for its call."""
    token = _live_send.set(send)
    try:
        yield
    finally:
        _live_send.reset(token)
