"""Calls that are written down before they are made, so that nothing that was sent is forgotten when the process dies.

    calls = IntentLog(eo.Intents(store, scope="billing"), "stripe")
    client = httpx.Client(transport=IdempotentTransport(log=calls))

Each call that gets a key is an intent: committed, sent under its key, and its answer committed. Made again, by a
handler that runs again, it gets that answer and is not sent. `Intents.recover` resumes a call that a crash has
interrupted, or it waits as in doubt for `Intents.resolve`.
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
from effectonce.intents.operations import Intent, IntentOperation
from effectonce.providers import Provider, classify, find_provider

#: The request headers that are logged: those that the same call has whenever it is made, and no credential.
LOGGED_HEADERS: Final = frozenset(("content-type", "content-encoding", "accept"))
#: The headers of an answer that describe its bytes on the wire, which are not stored.
WIRE_HEADERS: Final = frozenset(("content-length", "content-encoding", "transfer-encoding", "connection", "keep-alive"))


class LoggedRequest(Struct, frozen=True):
    """A call as its intent freezes it."""

    method: str
    url: str
    headers: Headers
    body: bytes


class LoggedResponse(Struct, frozen=True):
    """The answer to a call as its intent stores it. Not named as a response's, its fields are not classified again."""

    code: int
    header_fields: Headers
    body: bytes


class Unsettled(Exception):
    """An answer that leaves open whether the call took effect: the ``response`` says why."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"the API answered {response.status_code}")
        self.response = response


Send = Callable[[Mapping[str, str]], Any]
Resend = Callable[[LoggedRequest, Mapping[str, str]], Any]

#: Sends the call that is being made right now, with the headers that carry its key; None in a recovery.
_live_send: ContextVar[Send | None] = ContextVar("effectonce_live_call", default=None)


class IntentLog:
    """The log in which the calls of one client are written down.

    ``provider`` and ``operation`` name them, and ``options`` are those of `Intents.operation` (``window``, where the
    provider does not say how long it keeps keys). ``headers`` are request headers to log beside content type and
    accept. Credentials never are: ``credentials`` returns them for the calls that a recovery makes. Without it, the API
    turns those calls away, and they stay unfinished.
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
            raise ConfigurationError(f"{self._provider.name} takes its key in the body, which is yours to write")
        self._register = intents.operation(self._provider, operation, returns=LoggedResponse, **options)
        self._logged_headers = LOGGED_HEADERS | {KEY_HEADER} | {name.lower() for name in headers}
        self._credentials = credentials or dict[str, str]

    def operation(self, resend: Resend) -> IntentOperation[LoggedRequest, Any]:
        """Make the operation of a sync client; ``resend`` sends the calls that a recovery resumes."""

        def call(intent: Intent[LoggedRequest]) -> LoggedResponse:
            return self._read_answer(self._send(intent, resend), intent)

        return self._register(call)

    def async_operation(self, resend: Resend) -> IntentOperation[LoggedRequest, Any]:
        async def call(intent: Intent[LoggedRequest]) -> LoggedResponse:
            return self._read_answer(await self._send(intent, resend), intent)

        return self._register(call)

    def freeze(self, method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> LoggedRequest:
        """Make what is logged of a call."""
        if body is None:
            raise ConfigurationError("a body that can be read only once cannot be written down; pass it as bytes")
        logged = [(name.lower(), value) for name, value in headers if name.lower() in self._logged_headers]
        return LoggedRequest(method, url, sorted(logged), body)

    def _send(self, intent: Intent[LoggedRequest], resend: Resend) -> Any:
        """Send a call with its key, unless it brought one, and in a recovery with the credentials."""
        brought_key = any(name == KEY_HEADER for name, _ in intent.request.headers)
        key = {} if brought_key else intent.headers
        send = _live_send.get()
        return resend(intent.request, {**self._credentials(), **key}) if send is None else send(key)

    def _read_answer(self, response: Any, intent: Intent[LoggedRequest]) -> LoggedResponse:
        """Make what is stored of ``response``, whose body has been read. A refusal is an answer like any other."""
        status = response.status_code
        verdict = classify(self._provider, response, intent.send_count > 1)
        if not 300 <= status < 400 and verdict.kind not in ("success", "failure"):
            raise Unsettled(response)
        headers = [(name, value) for name, value in response.headers.items() if name.lower() not in WIRE_HEADERS]
        return LoggedResponse(status, headers, response.content)


@contextmanager
def sending_by(send: Send) -> Iterator[None]:
    """Let the operation that is called inside make its call by ``send``."""
    token = _live_send.set(send)
    try:
        yield
    finally:
        _live_send.reset(token)
