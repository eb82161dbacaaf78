"""Errors as problem+json (RFC 9457): how a server answers a request that may not run, and how a client reads that."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import msgspec

from effectonce import errors

from .protocol import DRAFT_URL, REPLAYED_HEADER, Response, ResponseUnknown

_SAME_KEY: Final = "Send the same request again, with the same key."
_IN_PROGRESS: Final = "The request is being processed"


class _ProblemText(NamedTuple):
    status: int
    title: str
    detail: str


#: By the class of an error. An error of another class is answered like the nearest of its bases that is listed.
_PROBLEMS: Final[dict[type[errors.EffectOnceError], _ProblemText]] = {
    errors.MissingKey: _ProblemText(
        400,
        "Idempotency-Key is missing",
        "This operation needs an Idempotency-Key header: a new UUID for each operation, the same for each retry of it.",
    ),
    errors.InvalidKey: _ProblemText(
        400,
        "Idempotency-Key cannot be read",
        'Send one Idempotency-Key header with a short string in it: Idempotency-Key: "8e03978e-40d5-43e8-bc93".',
    ),
    errors.MissingPrincipal: _ProblemText(
        401,
        "The caller is not known",
        "An Idempotency-Key belongs to its caller: authenticate, then send the request again with the same key.",
    ),
    errors.InProgress: _ProblemText(409, _IN_PROGRESS, f"It has not finished yet. {_SAME_KEY}"),
    errors.Reentered: _ProblemText(409, _IN_PROGRESS, f"It has not finished yet. {_SAME_KEY}"),
    errors.LeaseLost: _ProblemText(409, _IN_PROGRESS, f"Another attempt at it has taken over. {_SAME_KEY}"),
    errors.InDoubt: _ProblemText(
        409,
        "The outcome of the request is in doubt",
        "An earlier attempt ended without saying whether it took effect. It will not run again until that is known: "
        "do not send it under a new key, but ask the operator of this service.",
    ),
    errors.ResultNotStored: _ProblemText(
        409,
        "The request was processed, but its response was not kept",
        "It took effect once, and will not again. Its response was not kept: look at the resource itself.",
    ),
    ResponseUnknown: _ProblemText(
        409,
        "The request took effect, and its response is not known",
        "An operator of this service has decided that it took effect. It will not run again: look at the resource "
        "itself.",
    ),
    errors.PermanentFailure: _ProblemText(
        409,
        "The request was given up",
        "It will not run under this key any more. A new attempt needs a new key.",
    ),
    errors.PayloadTooLarge: _ProblemText(
        413,
        "The body is too large for an idempotent request",
        "This operation limits the size of a body that comes with an Idempotency-Key.",
    ),
    errors.PayloadMismatch: _ProblemText(
        422,
        "Idempotency-Key was used before with another request",
        "A retry must be the same request, byte by byte; a new operation needs a new key.",
    ),
    errors.CorruptRecord: _ProblemText(
        503,
        "The record of the request cannot be read",
        f"The service cannot read what it recorded about this request, and has not run it again. {_SAME_KEY}",
    ),
    errors.EffectOnceError: _ProblemText(
        503, "The request could not be recorded", f"The service could not reach its records. {_SAME_KEY}"
    ),
}
_MAX_RETRY_AFTER_S: Final = 60


class ProblemDescription(NamedTuple):
    """What is said about an error, in whatever form."""

    status: int
    detail: str
    retry_after: int | None  # in seconds


def describe(error: errors.EffectOnceError) -> ProblemDescription:
    """Describe ``error`` for its client, without the error's own text."""
    text = _text_of(error)
    retry_after = _retry_after(error) if _may_be_retried(text) else None
    return ProblemDescription(text.status, text.detail, retry_after)


def _text_of(error: errors.EffectOnceError) -> _ProblemText:
    return next(_PROBLEMS[kind] for kind in type(error).__mro__ if kind in _PROBLEMS)


def _may_be_retried(text: _ProblemText) -> bool:
    return text.status == 503 or text.title == _IN_PROGRESS


def problem(error: errors.EffectOnceError, docs: str = DRAFT_URL) -> Response:
    """Return ``error`` as problem+json; with status 503 unless the client or its request caused it.

    The error's own text is left out: it may hold what the client must not learn.
    """
    text = _text_of(error)
    code = errors.InProgress.code if isinstance(error, errors.Reentered) else error.code
    response = _make_response(docs, text, code)
    response.headers += [("cache-control", "no-store"), ("link", f'<{docs}>; rel="describedby"')]
    if _may_be_retried(text):
        response.headers.append(("retry-after", str(_retry_after(error))))
    if isinstance(error, errors.ResultNotStored):
        response.headers.append((REPLAYED_HEADER, "true"))
    response.headers.append(("content-length", str(len(response.body or b""))))
    return response


def lost_attempt(docs: str) -> Response:
    """Return the response that is stored for an attempt that raised, under ``on_error="replay"``."""
    text = _ProblemText(500, "The request failed", "It ended with an error, and will not run again under this key.")
    return _make_response(docs, text, "attempt-failed")


#: The errors that our HTTP clients raise for a problem, by code: those about the operation, not about the request.
_RAISED_BY_CLIENTS: Final = {
    kind.code: kind for kind, text in _PROBLEMS.items() if text.status in (409, 422) and kind is not ResponseUnknown
}


def error_of_problem(body: bytes, retry_after: float | None) -> errors.EffectOnceError | None:
    """Return the error that a client raises for a problem; None if it is not a problem of this protocol."""
    try:
        problem: Any = msgspec.json.decode(body)
        kind = _RAISED_BY_CLIENTS[problem["code"]]
        text = f"{problem.get('title')}: {problem.get('detail')}"
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
        return None
    message = f"the API answered: {errors.show(text, 300)}"
    if kind in (errors.InProgress, errors.LeaseLost):  # LeaseLost is about the API's attempt, not ours
        return errors.InProgress(message, retry_after or 1.0)
    return kind(message)


def _retry_after(error: errors.EffectOnceError) -> int:
    """Return whole seconds; one while another attempt runs, since it may end long before its lease does."""
    if isinstance(error, errors.Retryable) and not isinstance(error, errors.InProgress):
        return min(max(1, math.ceil(error.retry_after)), _MAX_RETRY_AFTER_S)
    return 1


def _make_response(docs: str, text: _ProblemText, code: str) -> Response:
    body = {"type": f"{docs}#{code}", "title": text.title, "status": text.status, "detail": text.detail, "code": code}
    return Response(text.status, [("content-type", "application/problem+json")], msgspec.json.encode(body))
