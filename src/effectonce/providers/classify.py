"""Classifying a response or an exception: did the effect happen? The one place that decides it.

Both are read by what they carry (a status, a code, headers), so that no SDK is imported: responses of `httpx` and
`requests`, and the errors of Stripe, PayPal, Square, Adyen, Twilio, gRPC and botocore all say these somewhere.

Of an exception there are three facts: the request **never left**; it was **answered**, with a status; it is **open**: a
timeout, a reset, a reply that was cut. And there are exceptions that tell nothing, like a `ValueError`. What these are
taken for is up to who asks:

- `classify`, for intents: *unknown*. An operation does nothing but its call, so whatever it raised may have come after
  the effect, and a resend under the same key costs nothing.
- `is_ambiguous`, for the steps of sagas: *a failure*. A step is the user's own code, and raising is how it says no.
  Only what is open, of itself or of its cause, leaves the saga where it is.

"Never left" is the one fact that both rely on to do something, so it has to be shown: see `client_retries`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from inspect import iscoroutine
from typing import Any, Final

from effectonce.errors import (
    BrokerUnavailable,
    EffectOnceError,
    InDoubt,
    InProgress,
    LeaseLost,
    OutcomeUnknown,
    StoreUnavailable,
    scrubbed,
    show,
)
from effectonce.values.retry_after import parse_retry_after

from .client_retries import NEVER_LEFT, class_names, class_packages, error_chain, sent_before_answer, sent_before_error
from .registry import Provider
from .verdicts import Verdict

_MAX_RETRY_AFTER_S: Final = 3600.0
_UNREADABLE_RETRY_AFTER_S: Final = 60.0

#: Packages whose errors are about a request. The same error of a database, say, may have come after the effect.
CLIENT_PACKAGES: Final = frozenset(
    (
        *(
            "httpx",
            "httpcore",
            "httpx2",
            "httpcore2",
            "requests",
            "urllib3",
            "urllib",
            "http",
            "aiohttp",
            "botocore",
            "grpc",
            "grpclib",
        ),
        *("stripe", "twilio", "square", "Adyen", "paypalhttp", "braintree"),
    )
)
#: Packages whose errors are answers to our own caller.
SERVER_PACKAGES: Final = frozenset(
    ("starlette", "fastapi", "werkzeug", "rest_framework", "litestar", "sanic", "falcon")
)
#: Errors, of any package, that say: the connection was cut off at an unknown point.
UNKNOWN_OUTCOME_ERRORS: Final = frozenset(
    (
        *("TimeoutError", "ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError", "SSLError"),
        *("IncompleteRead", "IncompleteReadError", "SMTPServerDisconnected", "BrokenResourceError", "EndOfStream"),
        *("RemoteProtocolError", "ReadError", "WriteError", "ServerDisconnectedError"),
    )
)
UNKNOWN_OUTCOME_ERRNO: Final = frozenset(
    getattr(errno, name, None) for name in ("ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH")
) - {None}

#: Our own errors that say the same.
UNSETTLED_ERRORS: Final = (OutcomeUnknown, InProgress, StoreUnavailable, BrokerUnavailable, InDoubt, LeaseLost)

#: Statuses that a proxy or a permission check gives before a key is looked at: on a resend they say nothing about the
#: first send.
GATEWAY_STATUSES: Final = frozenset((403, 404, 405, 407, 411, 413, 414, 415, 431, 451))
#: The HTTP status that is to be judged like a gRPC code. RESOURCE_EXHAUSTED is also said of a reply that is too large,
#: so it is no 429; ALREADY_EXISTS may be what a send before has made.
HTTP_STATUS_BY_GRPC_CODE: Final = {
    **dict.fromkeys(("UNKNOWN", "INTERNAL", "DATA_LOSS"), 500),
    **dict.fromkeys(("UNAVAILABLE", "ABORTED", "RESOURCE_EXHAUSTED"), 503),
    **dict.fromkeys(("DEADLINE_EXCEEDED", "CANCELLED"), 504),
    **dict.fromkeys(("INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"), 400),
    **dict.fromkeys(("PERMISSION_DENIED", "ALREADY_EXISTS"), 403),
    "UNAUTHENTICATED": 401,
    "NOT_FOUND": 404,
    "UNIMPLEMENTED": 405,
    "OK": 200,
}


def classify(provider: Provider, outcome: Any, resend: bool = False) -> Verdict:
    """Classify the ``outcome`` of a call to ``provider``: the value that the operation returned, or its exception.

    A value without a status is a success. An exception that says nothing is ``unknown``, since it may have come after
    the effect, and so is an outcome that cannot be read. ``resend``: it was sent before, with an unknown outcome.
    """
    try:
        return _classify_outcome(provider, outcome, resend)
    except Exception as problem:
        return Verdict.unknown(f"{type(outcome).__name__}, which cannot be read: {type(problem).__name__}")


def is_ambiguous(error: BaseException, again: bool = False) -> bool:
    """Whether ``error`` leaves open whether what was asked for happened.

    It does if it is of the network, of an HTTP client or an SDK, or carries a status, and that says so; if it was
    raised ``from`` such an error; or if it cannot be read. ``again``: it was asked for before, and nobody knows what
    came of that; what was turned away now says nothing of it.
    """
    try:
        return _is_unknown(error, again)
    except Exception:
        return True


def _classify_outcome(provider: Provider, outcome: Any, resend: bool) -> Verdict:
    raised = isinstance(outcome, BaseException)
    response = getattr(outcome, "response", None) if raised else outcome
    status = _find_status(outcome, response)
    if status is None:
        return _classify_unanswered(outcome) if raised else Verdict.success(outcome)
    codes = frozenset(_find_codes(outcome, response))
    named = f" {show(min(codes), 60)}" if codes else ""
    why, wait = f"{provider.name} answered {_find_grpc_code(outcome) or status}{named}", _retry_after(outcome, response)
    if codes & provider.in_use:
        return Verdict.unknown(f"{why}: a request with this key is still running", wait)
    if codes & provider.mismatch:
        return Verdict.unknown(f"{why}: this key was used with another request", wait)
    if 200 <= status < 300:
        return Verdict.unknown(f"{why}, and then it raised", wait) if raised else Verdict.success(outcome)
    before = sent_before_answer(outcome, response)
    if status in (401, 429) or codes & provider.turned_away:
        if before is False:
            return Verdict.not_executed(why, wait)
        how = "had" if before else "may have"
        return Verdict.unknown(f"{why}, after the client {how} sent it before", wait)
    if status in (408, 409, 425) or status >= 500 or status < 400:
        return Verdict.unknown(why, wait)
    if (before and not provider.keyed) or ((before or resend) and status in GATEWAY_STATUSES):
        return Verdict.unknown(f"{why}, which says nothing about the send before", wait)
    if provider.transient and str(_find_header(provider.transient, outcome, response)).lower() == "true":
        return Verdict.unknown(why, wait)
    return Verdict.failure(f"{why}: {show(_describe(outcome), 200)}" if raised else why)


def _classify_unanswered(error: BaseException) -> Verdict:
    """Classify a call without an answer. Only one that an HTTP client could not send was surely not executed."""
    said = f"{type(error).__name__}: {show(_describe(error), 200)}"
    chain = error_chain(error) if class_packages(error) & CLIENT_PACKAGES else []
    for link in chain:
        if not (stopped := class_names(link) & NEVER_LEFT):
            continue
        before = sent_before_error(chain)
        if before is False or (before is None and stopped & {"InvalidURL", "UnsupportedProtocol"}):
            return Verdict.not_executed(f"it was not sent: {type(link).__name__}: {show(_describe(link), 200)}")
        how = "had" if before else "may have"
        return Verdict.unknown(f"{said}, after the client {how} sent it before")
    return Verdict.unknown(said)


_ANY_PROVIDER: Final = Provider(name="it")


def _is_unknown(error: BaseException, again: bool) -> bool:
    if isinstance(error, EffectOnceError):  # it means what it says, whatever it was raised from
        return isinstance(error, UNSETTLED_ERRORS)
    if isinstance(error, BaseExceptionGroup):
        return any(_is_unknown(each, again) for each in error.exceptions)
    if _is_server_error(error):
        return (_find_status(error) or _find_loose_status(error) or 0) >= 500 or _has_unknown_cause(error, again)
    if not class_packages(error) & CLIENT_PACKAGES:
        return _looks_unknown(error, again) or _has_unknown_cause(error, again)
    kind = classify(_ANY_PROVIDER, error, again).kind
    return kind == "unknown" or (again and kind == "not_executed")


def _is_server_error(error: BaseException) -> bool:
    """Whether a web framework's: the step's own word to its caller. It may pass on what a provider's 5xx left open."""
    return bool(class_packages(error) & SERVER_PACKAGES) or any(
        kind.__module__ in ("aiohttp.web_exceptions", "tornado.web") for kind in type(error).__mro__
    )


def _has_unknown_cause(error: BaseException, again: bool) -> bool:
    """``raise PaymentFailed from timeout`` knows no more than the timeout. Of a 4xx its author knew what it says."""
    cause = error.__cause__
    if cause is None or cause is error:
        return False
    said = _status_is_unknown(cause, again)
    return _is_unknown(cause, again) if said is None else said


def _looks_unknown(error: BaseException, again: bool) -> bool:
    """The same of an error of anybody's: what says nothing is not open."""
    named = class_names(error)
    if named & {"ConnectionRefusedError", "gaierror", "SSLCertVerificationError"}:
        return again
    if named & UNKNOWN_OUTCOME_ERRORS or any(name.endswith(("Timeout", "TimeoutError")) for name in named):
        return True
    if isinstance(error, OSError) and error.errno in UNKNOWN_OUTCOME_ERRNO:
        return True
    said = _status_is_unknown(error, again)
    return again and isinstance(error, ConnectionError) if said is None else said


def _status_is_unknown(error: BaseException, again: bool) -> bool | None:
    """Whether the status that ``error`` carries leaves it open; None: it carries none."""
    response = getattr(error, "response", None)
    status = _find_status(error, response) or _find_loose_status(error)
    if status is None:
        return None
    if status < 400 or status >= 500 or status == 408:
        return True
    again = again or sent_before_answer(error, response) is True
    return again and (status in (401, 409, 425, 429) or status in GATEWAY_STATUSES)


def _find_loose_status(error: BaseException) -> int | None:
    """A number that may be a status. It is believed where it says that nobody knows, and nowhere else."""
    found = (getattr(error, "status", None), _find_code(error))
    return next((each for each in found if isinstance(each, int) and 400 <= each <= 599), None)


def _find_code(source: Any) -> Any:
    """aiohttp's is its status once more, and warns when it is read."""
    return None if type(source).__module__.startswith("aiohttp.") else getattr(source, "code", None)


def _find_grpc_code(source: Any) -> str | None:
    """The name of the gRPC code that ``source`` carries: `code()`, or as google.api_core and grpclib have it."""
    found = getattr(source, "grpc_status_code", None)
    if isinstance(source, BaseException) and found is None:
        made = class_packages(source)
        code = getattr(source, "code", None) if "grpc" in made else None
        found = code() if callable(code) else getattr(source, "status", None) if "grpclib" in made else None
    name = getattr(found, "name", None)
    return name if name in HTTP_STATUS_BY_GRPC_CODE else None


def _find_status(*sources: Any) -> int | None:
    for source in sources:
        raised = isinstance(source, BaseException)
        if raised and (code := _find_grpc_code(source)) is not None:
            return HTTP_STATUS_BY_GRPC_CODE[code]
        trusted = raised and bool(class_packages(source) & CLIENT_PACKAGES)
        given = [getattr(source, name, None) for name in ("status_code", "http_status")]
        if trusted or hasattr(source, "headers"):  # of plain objects, "status" may mean anything
            given.append(getattr(source, "status", None))
        if trusted:
            given.append(_find_code(source))
        for found in given:
            if isinstance(found, int) and 100 <= found <= 599:
                return found
        if isinstance(source, Mapping):  # botocore's
            found = _get_nested(source, "ResponseMetadata", "HTTPStatusCode")
            if isinstance(found, int):
                return found
    return None


def _find_codes(*sources: Any) -> Iterator[str]:
    for source in sources:
        given = (getattr(source, name, None) for name in ("type", "error_code", "errorCode", "name"))
        for found in (_find_code(source), *given):
            if isinstance(found, str | int) and not isinstance(found, bool):
                yield str(found)
        body = source if isinstance(source, Mapping) else _find_body(source)
        if isinstance(body, Mapping):
            yield from _find_codes_in(body)


def _find_codes_in(body: Mapping[Any, Any]) -> Iterator[str]:
    lists = [each for each in (body.get("errors"), body.get("details")) if isinstance(each, list)]
    for place in (body, body.get("error"), body.get("Error"), *(first for each in lists for first in each[:5])):
        if isinstance(place, Mapping):
            for name in ("code", "Code", "type", "errorCode", "name", "issue"):
                found = place.get(name)
                if isinstance(found, str | int) and not isinstance(found, bool):
                    yield str(found)


def _find_body(source: Any) -> Any:
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


def _get_nested(source: Mapping[Any, Any], *path: str) -> Any:
    found: Any = source
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _find_header(name: str, *sources: Any) -> str | None:
    for source in sources:
        headers = getattr(source, "headers", None)
        if isinstance(headers, Mapping):
            for header, value in headers.items():
                if str(header).lower() == name.lower():
                    return str(value)
    return None


def _retry_after(*sources: Any) -> float:
    header = _find_header("Retry-After", *sources)
    if header is None:
        return 1.0
    seconds = parse_retry_after(header)
    return _UNREADABLE_RETRY_AFTER_S if seconds is None else min(seconds, _MAX_RETRY_AFTER_S)


def _describe(error: Any) -> str:
    try:
        return scrubbed(str(error))
    except Exception:
        return ""
