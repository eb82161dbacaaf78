"""From a response or an exception to a `Verdict`.

Both are read by what they carry (a status, a code, headers), so that no SDK is imported: responses of `httpx` and
`requests`, and the errors of Stripe, PayPal, Square, Adyen, Twilio and botocore all say these somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from effectonce.errors import show

from .registry import Provider
from .verdicts import Verdict

#: What HTTP clients raise before a byte of the request has left.
NEVER_LEFT: Final = frozenset(
    (
        *("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "InvalidURL", "LocalProtocolError"),
        *("ConnectTimeoutError", "NewConnectionError", "NameResolutionError", "EndpointConnectionError"),
        *("ConnectionRefusedError", "gaierror"),
    )
)


def classify(provider: Provider, outcome: Any) -> Verdict:
    """What ``outcome`` of a call to ``provider`` says: the value that the operation returned, or what it raised.

    A value without a status is a success. An exception that says nothing is ``unknown``: it may have come after the
    effect.
    """
    raised = isinstance(outcome, BaseException)
    response = getattr(outcome, "response", None) if raised else outcome
    status = _status(outcome, response)
    if status is None:
        return _without_answer(outcome) if raised else Verdict.success(outcome)
    codes = frozenset(_codes(outcome, response))
    named = f" {show(min(codes), 60)}" if codes else ""
    why, wait = f"{provider.name} answered {status}{named}", _retry_after(response)
    if codes & provider.in_use:
        return Verdict.unknown(f"{why}: a request with this key is still running", wait)
    if codes & provider.mismatch:
        return Verdict.unknown(f"{why}: this key was used with another request", wait)
    if 200 <= status < 300:
        return Verdict.success(outcome)
    if status in (401, 429):
        return Verdict.not_executed(why, wait)
    if status in (408, 409, 425) or status >= 500 or status < 400:
        return Verdict.unknown(why, wait)
    if provider.transient and str(_header(response, provider.transient)).lower() == "true":
        return Verdict.unknown(why, wait)
    return Verdict.failure(f"{why}: {show(_text(outcome), 200)}" if raised else why)


def _without_answer(error: BaseException) -> Verdict:
    """Nobody answered. Only what failed before the request left has surely not been executed."""
    link: BaseException | None = error
    for _ in range(8):
        if link is None:
            break
        if any(kind.__name__ in NEVER_LEFT for kind in type(link).__mro__):
            return Verdict.not_executed(f"it was not sent: {type(link).__name__}: {show(_text(link), 200)}")
        reason = getattr(link, "reason", None)
        link = reason if isinstance(reason, BaseException) else link.__cause__ or link.__context__
    return Verdict.unknown(f"{type(error).__name__}: {show(_text(error), 200)}")


def _status(*sources: Any) -> int | None:
    for source in sources:
        for name in ("status_code", "http_status", "status"):
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
    errors = body.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else None
    for place in (body, body.get("error"), body.get("Error"), first):
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
            return read()
        except Exception:  # no JSON, or not read yet: then its status has to do
            return None
    return None


def _within(source: Mapping[Any, Any], *path: str) -> Any:
    found: Any = source
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _header(response: Any, name: str) -> str | None:
    headers = getattr(response, "headers", None)
    if not isinstance(headers, Mapping):
        return None
    found = headers.get(name)
    if found is None:
        found = next((value for header, value in headers.items() if str(header).lower() == name.lower()), None)
    return None if found is None else str(found)


def _retry_after(response: Any) -> float:
    try:
        return min(3600.0, max(0.0, float(_header(response, "Retry-After") or 1.0)))
    except ValueError:  # a date: later will do
        return 60.0


def _text(error: Any) -> str:
    try:
        return str(error)
    except Exception:
        return ""
