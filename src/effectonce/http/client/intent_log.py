"""Calls that are written down before they are made, so that nothing that was sent is forgotten when the process dies.

    calls = IntentLog(eo.Intents(store, scope="billing"), "stripe")
    client = httpx.Client(transport=IdempotentTransport(log=calls))

Each call that gets a key is an intent: committed, sent under its key, and its answer committed. Made again, by a
handler that runs again, it gets that answer and is not sent. One that a crash has interrupted is gone on with by
`Intents.recover`, or waits as in doubt for `Intents.resolve`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from msgspec import Struct

from effectonce.errors import ConfigurationError
from effectonce.http.protocol import KEY, Headers
from effectonce.intents.intents import Intents
from effectonce.intents.operations import Intent, IntentOperation
from effectonce.providers import Provider, classify, find

#: The request headers that are written down: what the same call has whenever it is made, and no credential.
WRITTEN: Final = frozenset(("content-type", "content-encoding", "accept"))
#: Of an answer's headers, what is true of the bytes on the wire only.
OF_THE_WIRE: Final = frozenset(("content-length", "content-encoding", "transfer-encoding", "connection", "keep-alive"))


class LoggedRequest(Struct, frozen=True):
    """A call as it is frozen."""

    method: str
    url: str
    headers: Headers
    body: bytes


class LoggedResponse(Struct, frozen=True):
    """What came of it."""

    code: int
    headed: Headers
    body: bytes


class Unsettled(Exception):
    """An answer that leaves open what became of the call: its ``response`` says why."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"the API answered {response.status_code}")
        self.response = response


#: How the call that is being made right now is sent, with the headers that carry its key; None in a recovery.
_live: ContextVar[Callable[[Mapping[str, str]], Any] | None] = ContextVar("effectonce_live_call", default=None)


class IntentLog:
    """Where the calls of one client are written down.

    ``provider`` and ``operation`` name them, and ``options`` are those of `Intents.operation` (``window``, where the
    provider does not say how long it keeps keys). ``headers`` are request headers to write down beside content type and
    accept. Credentials never are: ``credentials`` gives them for the calls that a recovery makes; without it these are
    turned away by the API, and stay where they are.
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
        self._provider = find(provider)
        if self._provider.carrier == "body":
            raise ConfigurationError(f"{self._provider.name} takes its key in the body, which is yours to write")
        self._register = intents.operation(self._provider, operation, returns=LoggedResponse, **options)
        self._written = WRITTEN | {name.lower() for name in headers}
        self._credentials = credentials or dict[str, str]

    def operation(self, send: Callable[[LoggedRequest, Mapping[str, str]], Any]) -> IntentOperation[LoggedRequest, Any]:
        """The operation that makes the calls; ``send`` makes those that a recovery goes on with."""

        def call(intent: Intent[LoggedRequest]) -> LoggedResponse:
            live, own = _live.get(), self._own_headers(intent)
            return self._answer(live(own) if live is not None else send(intent.request, own), intent)

        return self._register(call)

    def async_operation(
        self, send: Callable[[LoggedRequest, Mapping[str, str]], Awaitable[Any]]
    ) -> IntentOperation[LoggedRequest, Any]:
        async def call(intent: Intent[LoggedRequest]) -> LoggedResponse:
            live, own = _live.get(), self._own_headers(intent)
            return self._answer(await (live(own) if live is not None else send(intent.request, own)), intent)

        return self._register(call)

    def frozen(self, method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> LoggedRequest:
        """The call as it is written down."""
        if body is None:
            raise ConfigurationError("a body that can be read only once cannot be written down; pass it as bytes")
        kept = [(name.lower(), value) for name, value in headers if name.lower() in {*self._written, KEY}]
        return LoggedRequest(method, url, sorted(kept), body)

    def _own_headers(self, intent: Intent[LoggedRequest]) -> Mapping[str, str]:
        """What is added to a call: its key, unless it brought one, and in a recovery the credentials."""
        own = {} if any(name == KEY for name, _ in intent.request.headers) else intent.headers
        return own if _live.get() is not None else {**self._credentials(), **own}

    def _answer(self, response: Any, intent: Intent[LoggedRequest]) -> LoggedResponse:
        """``response``, whose body has been read, as what came of the call. A refusal is an answer like any other."""
        status = response.status_code
        verdict = classify(self._provider, response, intent.send_count > 1)
        if not 300 <= status < 400 and verdict.kind not in ("success", "failure"):
            raise Unsettled(response)
        headed = [(name, value) for name, value in response.headers.items() if name.lower() not in OF_THE_WIRE]
        return LoggedResponse(status, headed, response.content)


def live(send: Callable[[Mapping[str, str]], Any], operation: Callable[[], Any]) -> Any:
    """Run ``operation``, whose call is made by ``send``."""
    token = _live.set(send)
    try:
        return operation()
    finally:
        _live.reset(token)


async def alive(send: Callable[[Mapping[str, str]], Any], operation: Callable[[], Awaitable[Any]]) -> Any:
    """`live`, for an operation to be awaited."""
    token = _live.set(send)
    try:
        return await operation()
    finally:
        _live.reset(token)
