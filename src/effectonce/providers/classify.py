"""From a response or an exception to a `Verdict`.

Both are read by what they carry (a status, a code, headers), so that no SDK is imported: responses of `httpx` and
`requests`, and the errors of Stripe, PayPal, Square, Adyen, Twilio and botocore all say these somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import iscoroutine
from typing import Any, Final

from effectonce.errors import scrubbed, show

from .registry import Provider
from .verdicts import Verdict

#: What HTTP clients raise, or have as the reason of what they raise, before a byte of the request has left.
NEVER_LEFT: Final = frozenset(
    (
        *("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "InvalidURL"),
        *("ConnectTimeoutError", "NewConnectionError", "NameResolutionError", "EndpointConnectionError"),
        *("ClientConnectorError", "ConnectionRefusedError", "gaierror"),
    )
)
#: Whose errors those are. The same from anywhere else, a database say, may have come after the effect.
CLIENTS: Final = frozenset(("httpx", "httpcore", "requests", "urllib3", "urllib", "aiohttp", "botocore", "stripe"))


#: Given before a key is looked at, by a proxy or by who checks permissions: on a resend they say nothing about the
#: first.
GATES: Final = frozenset((403, 404, 405, 407, 411, 413, 414, 415, 431, 451))


def classify(provider: Provider, outcome: Any, resend: bool = False) -> Verdict:
    """What ``outcome`` of a call to ``provider`` says: the value that the operation returned, or what it raised.

    A value without a status is a success. An exception that says nothing is ``unknown``: it may have come after the
    effect. ``resend``: it was sent before, and nobody knows what came of that.
    """
    raised = isinstance(outcome, BaseException)
    response = getattr(outcome, "response", None) if raised else outcome
    status = _status(outcome, response)
    if status is None:
        return _without_answer(outcome) if raised else Verdict.success(outcome)
    codes = frozenset(_codes(outcome, response))
    named = f" {show(min(codes), 60)}" if codes else ""
    why, wait = f"{provider.name} answered {status}{named}", _retry_after(outcome, response)
    if codes & provider.in_use:
        return Verdict.unknown(f"{why}: a request with this key is still running", wait)
    if codes & provider.mismatch:
        return Verdict.unknown(f"{why}: this key was used with another request", wait)
    if 200 <= status < 300:
        return Verdict.success(outcome)
    if status in (401, 429) or codes & provider.turned_away:
        if _retried(outcome, response):
            return Verdict.unknown(f"{why}, after the client had sent it before", wait)
        return Verdict.not_executed(why, wait)
    if status in (408, 409, 425) or status >= 500 or status < 400:
        return Verdict.unknown(why, wait)
    if resend and status in GATES:
        return Verdict.unknown(f"{why}, which says nothing about the send before", wait)
    if provider.transient and str(_header(provider.transient, outcome, response)).lower() == "true":
        return Verdict.unknown(why, wait)
    return Verdict.failure(f"{why}: {show(_text(outcome), 200)}" if raised else why)


def is_ambiguous(error: BaseException, again: bool = False) -> bool:
    """Whether ``error`` is of the network or of an HTTP client, and leaves open whether what was asked for happened.

    ``again``: it was asked for before, and nobody knows what came of that; what was turned away now says nothing of it.
    """
    if isinstance(error, TimeoutError | ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return True
    if type(error).__module__.partition(".")[0] not in CLIENTS:
        return again and isinstance(error, ConnectionError)
    kind = classify(_ANY, error, again).kind
    return kind == "unknown" or (again and kind == "not_executed")


_ANY: Final = Provider(name="it")


def _without_answer(error: BaseException) -> Verdict:
    """Nobody answered. Only what an HTTP client could not send has surely not been executed."""
    link: BaseException | None = error if type(error).__module__.partition(".")[0] in CLIENTS else None
    for _ in range(8):
        if link is None:
            break
        if any(kind.__name__ in NEVER_LEFT for kind in type(link).__mro__):
            return Verdict.not_executed(f"it was not sent: {type(link).__name__}: {show(_text(link), 200)}")
        inner = (getattr(link, "reason", None), link.__cause__, *link.args[:1])
        link = next((each for each in inner if isinstance(each, BaseException)), None)
    return Verdict.unknown(f"{type(error).__name__}: {show(_text(error), 200)}")


def _retried(*sources: Any) -> bool:
    """Whether botocore says that it had sent the request before this answer."""
    return any(
        _within(source, "ResponseMetadata", "RetryAttempts") for source in sources if isinstance(source, Mapping)
    )


def _status(*sources: Any) -> int | None:
    for source in sources:
        names = (
            ("status_code", "http_status", "status") if hasattr(source, "headers") else ("status_code", "http_status")
        )
        for name in names:  # of plain objects, "status" may mean anything
            found = getattr(source, name, None)
            if isinstance(found, int) and 100 <= found <= 599:
                return found
        if isinstance(source, Mapping):  # botocore's
            found = _within(source, "ResponseMetadata", "HTTPStatusCode")
            if isinstance(found, int):
                return found
    return None


def _codes(*sources: Any) -> Iterator[str]:
    for source in sources:
        for name in ("code", "type", "error_code", "errorCode", "name"):
            found = getattr(source, name, None)
            if isinstance(found, str | int) and not isinstance(found, bool):
                yield str(found)
        body = source if isinstance(source, Mapping) else _body(source)
        if isinstance(body, Mapping):
            yield from _codes_within(body)


def _codes_within(body: Mapping[Any, Any]) -> Iterator[str]:
    lists = [each for each in (body.get("errors"), body.get("details")) if isinstance(each, list)]
    for place in (body, body.get("error"), body.get("Error"), *(first for each in lists for first in each[:5])):
        if isinstance(place, Mapping):
            for name in ("code", "Code", "type", "errorCode", "name", "issue"):
                found = place.get(name)
                if isinstance(found, str | int) and not isinstance(found, bool):
                    yield str(found)


def _body(source: Any) -> Any:
    for name in ("json_body", "body"):
        found = getattr(source, name, None)
        if isinstance(found, Mapping):
            return found
    read = getattr(source, "json", None)
    if callable(read):
        try:
            found = read()
        except Exception:  # no JSON, or not read yet: then its status has to do
            return None
        if iscoroutine(found):  # of an async client
            found.close()
            return None
        return found
    return None


def _within(source: Mapping[Any, Any], *path: str) -> Any:
    found: Any = source
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _header(name: str, *sources: Any) -> str | None:
    for source in sources:
        headers = getattr(source, "headers", None)
        if isinstance(headers, Mapping):
            for header, value in headers.items():
                if str(header).lower() == name.lower():
                    return str(value)
    return None


def _retry_after(*sources: Any) -> float:
    try:
        return min(3600.0, max(0.0, float(_header("Retry-After", *sources) or 1.0)))
    except ValueError:  # a date: later will do
        return 60.0


def _text(error: Any) -> str:
    try:
        return scrubbed(str(error))
    except Exception:
        return ""
