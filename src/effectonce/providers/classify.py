"""Classifies a response or an exception: did the effect happen? This is the one place that decides it.

An exception shows one of three facts: the request **never left**; it was **answered**, with a status; or its outcome is
**unknown**, after a timeout, a reset, or a reply that was cut off. Other exceptions, like a `ValueError`, show nothing.
How those are judged depends on the caller:

- `classify`, for intents: as *unknown*. An operation does nothing but its call, so the exception may have come after
  the effect, and a resend under the same key is safe.
- `is_ambiguous`, for the steps of sagas: as *a failure*. A step is the user's own code, which raises to report a
  failure. Only an exception of unknown outcome, or one with such a cause, stops the saga where it is.

If the request never left, it is sent again, so that has to be proved: see `client_retries`.

How an answer is classified. The client, or an SDK, may have sent the request more than once for this answer; a *resend*
is a call of ours after one whose outcome stayed unknown. The first row that fits decides:

    answer                         sent once      sent before by      resend         since
                                                  the client
    a code of ``in_use``           unknown        unknown             unknown        the first request still runs
    a code of ``mismatch``         unknown        unknown             unknown        the key is of another request
    2xx                            success        success             success        it says so
    2xx, and then an exception     unknown        unknown             unknown        the client could not read it
    REFUSED_BEFORE_EXECUTION,      not_executed   unknown (even if    not_executed   a limit or a login stood before it;
      a code of ``turned_away``                   it may have been)                  the send before may have passed
    MAY_STILL_BE_RUNNING,          unknown        unknown             unknown        the effect may follow, or precede
      1xx, 3xx, 5xx
    ``transient`` header: true     unknown        unknown             unknown        the provider says so
    GATEWAY_STATUSES               failure        unknown             unknown        it was said before any key was read
    other 4xx, with a key          failure        failure             failure        it is about all sends of the key
    other 4xx, without a key       failure        unknown             failure        it is about this send only

``not_executed``, and ``failure`` without a key, are about this send only: on a resend `IntentRunner._classify` turns
them into ``unknown``.
"""

from __future__ import annotations

import errno
from typing import Any, Final

from effectonce.errors import (
    BrokerUnavailable,
    EffectOnceError,
    InDoubt,
    InProgress,
    LeaseLost,
    OutcomeUnknown,
    StoreUnavailable,
    scrub_urls,
    show,
)
from effectonce.values.retry_after import parse_retry_after

from . import outcome_fields as fields
from .catalog import Provider
from .client_retries import NEVER_LEFT, sent_before_answer, sent_before_error
from .verdicts import Verdict

_MAX_RETRY_AFTER_S: Final = 3600.0
_UNREADABLE_RETRY_AFTER_S: Final = 60.0

#: Web frameworks. A step inside a web handler raises their errors to answer its own caller.
SERVER_PACKAGES: Final = frozenset(
    ("starlette", "fastapi", "werkzeug", "rest_framework", "litestar", "sanic", "falcon")
)
SERVER_MODULES: Final = ("aiohttp.web_exceptions", "tornado.web")
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

#: The errors of effectonce that say the same.
UNSETTLED_ERRORS: Final = (OutcomeUnknown, InProgress, StoreUnavailable, BrokerUnavailable, InDoubt, LeaseLost)

#: The login or the rate limit refused the request before it was executed.
REFUSED_BEFORE_EXECUTION: Final = frozenset((401, 429))
#: A timeout, a conflict, or "too early": the first request with this key may still be running.
MAY_STILL_BE_RUNNING: Final = frozenset((408, 409, 425))
#: Statuses that a proxy or a permission check returns before the key is looked up. On a resend they say nothing about
#: the first send.
GATEWAY_STATUSES: Final = frozenset((403, 404, 405, 407, 411, 413, 414, 415, 431, 451))


def classify(provider: Provider, outcome: Any, resend: bool = False) -> Verdict:
    """Classify the ``outcome`` of a call to ``provider``: the value that the operation returned, or its exception.

    A value without a status is a success. An exception that shows nothing is ``unknown``, since it may have come after
    the effect; so is an outcome that cannot be read. ``resend``: the request was sent before, with an unknown outcome.
    The table of the module has all rows.
    """
    try:
        return _classify_outcome(provider, outcome, resend)
    except Exception as problem:
        return Verdict.unknown(f"{type(outcome).__name__}, which cannot be read: {type(problem).__name__}")


def is_ambiguous(error: BaseException, resend: bool = False) -> bool:
    """Whether it is unknown if the call that raised ``error`` took effect.

    That is so for network errors, and for errors of HTTP clients and SDKs or with a status, if they show it; for an
    error raised ``from`` one of these; and for an error that cannot be read. ``resend``: the call was made before, with
    an unknown outcome, so a refusal now says nothing about that.
    """
    try:
        return _is_unknown(error, resend)
    except Exception:
        return True


def _classify_outcome(provider: Provider, outcome: Any, resend: bool) -> Verdict:
    raised = isinstance(outcome, BaseException)
    response = getattr(outcome, "response", None) if raised else outcome
    status = fields.find_status(outcome, response)
    if status is None:
        return _classify_unanswered(outcome) if raised else Verdict.success(outcome)
    codes = frozenset(fields.find_codes(outcome, response))
    why = f"{provider.name} answered {fields.find_grpc_code(outcome) or status}"
    if codes:
        why += f" {show(min(codes), 60)}"
    retry_after = _retry_after(outcome, response)
    if codes.intersection(provider.in_use):
        return Verdict.unknown(f"{why}: a request with this key is still running", retry_after)
    if codes.intersection(provider.mismatch):
        return Verdict.unknown(f"{why}: this key was used with another request", retry_after)
    if 200 <= status < 300:
        return Verdict.unknown(f"{why}, and then it raised", retry_after) if raised else Verdict.success(outcome)
    sent_before = sent_before_answer(outcome, response)
    if status in REFUSED_BEFORE_EXECUTION or codes.intersection(provider.turned_away):
        if sent_before is False:
            return Verdict.not_executed(why, retry_after)
        return Verdict.unknown(f"{why}, {_after_an_earlier_send(sent_before)}", retry_after)
    if status in MAY_STILL_BE_RUNNING or status >= 500 or status < 400:
        return Verdict.unknown(why, retry_after)
    if (sent_before and not provider.keyed) or ((sent_before or resend) and status in GATEWAY_STATUSES):
        return Verdict.unknown(f"{why}, which says nothing about the send before", retry_after)
    if provider.transient and str(fields.find_header(provider.transient, outcome, response)).lower() == "true":
        return Verdict.unknown(why, retry_after)
    return Verdict.failure(f"{why}: {_describe(outcome)}" if raised else why)


def _classify_unanswered(error: BaseException) -> Verdict:
    """Classify a call without a response. It was certainly not executed only if an HTTP client could not send it."""
    why = f"{type(error).__name__}: {_describe(error)}"
    chain = fields.error_chain(error) if fields.is_client_error(error) else []
    for link in chain:
        names = fields.class_names(link)
        if names & NEVER_LEFT:
            sent_before = sent_before_error(chain)
            if sent_before is False or (sent_before is None and names & {"InvalidURL", "UnsupportedProtocol"}):
                return Verdict.not_executed(f"it was not sent: {type(link).__name__}: {_describe(link)}")
            return Verdict.unknown(f"{why}, {_after_an_earlier_send(sent_before)}")
    return Verdict.unknown(why)


def _after_an_earlier_send(sent_before: bool | None) -> str:
    return f"after the client {'had' if sent_before else 'may have'} sent it before"


_ANY_PROVIDER: Final = Provider("it")


def _is_unknown(error: BaseException, resend: bool) -> bool:
    if isinstance(error, EffectOnceError):  # its class decides, whatever it was raised from
        return isinstance(error, UNSETTLED_ERRORS)
    if isinstance(error, BaseExceptionGroup):
        return any(_is_unknown(inner, resend) for inner in error.exceptions)
    if _is_server_error(error):
        status = fields.find_status(error) or fields.find_loose_status(error) or 0
        return status >= 500 or _has_unknown_cause(error, resend)
    if not fields.is_client_error(error):
        return _looks_unknown(error, resend) or _has_unknown_cause(error, resend)
    kind = classify(_ANY_PROVIDER, error, resend).kind
    return kind == "unknown" or (resend and kind == "not_executed")


def _is_server_error(error: BaseException) -> bool:
    """Whether ``error`` is of a web framework: the step answers its own caller with it. (With a 5xx it may pass on a
    provider's 5xx, whose outcome is unknown.)"""
    modules = {kind.__module__ for kind in type(error).__mro__}
    return not (SERVER_PACKAGES.isdisjoint(fields.class_packages(error)) and modules.isdisjoint(SERVER_MODULES))


def _has_unknown_cause(error: BaseException, resend: bool) -> bool:
    """Whether ``error`` was raised from an error of unknown outcome: ``raise PaymentFailed from timeout`` knows no more
    than the timeout. If the cause is a 4xx, the author of the step has judged it."""
    cause = error.__cause__
    if cause is None or cause is error:
        return False
    by_status = _status_is_unknown(cause, resend)
    return _is_unknown(cause, resend) if by_status is None else by_status


def _looks_unknown(error: BaseException, resend: bool) -> bool:
    """Judge an error of any other package: the outcome is unknown only if the error shows it."""
    names = fields.class_names(error)
    if names & {"ConnectionRefusedError", "gaierror", "SSLCertVerificationError"}:
        return resend
    if names & UNKNOWN_OUTCOME_ERRORS or any(name.endswith(("Timeout", "TimeoutError")) for name in names):
        return True
    if isinstance(error, OSError) and error.errno in UNKNOWN_OUTCOME_ERRNO:
        return True
    by_status = _status_is_unknown(error, resend)
    return resend and isinstance(error, ConnectionError) if by_status is None else by_status


def _status_is_unknown(error: BaseException, resend: bool) -> bool | None:
    """Whether the status that ``error`` carries leaves the outcome unknown; None: it carries none."""
    response = getattr(error, "response", None)
    status = fields.find_status(error, response) or fields.find_loose_status(error)
    if status is None:
        return None
    if status < 400 or status >= 500 or status == 408:
        return True
    resend = resend or sent_before_answer(error, response) is True
    return resend and (status in (401, 409, 425, 429) or status in GATEWAY_STATUSES)


def _retry_after(*sources: Any) -> float:
    header = fields.find_header("Retry-After", *sources)
    if not header:
        return 1.0
    seconds = parse_retry_after(header)
    return _UNREADABLE_RETRY_AFTER_S if seconds is None else min(seconds, _MAX_RETRY_AFTER_S)


def _describe(error: Any) -> str:
    try:
        return show(scrub_urls(str(error)), 200)
    except Exception:
        return ""
