"""Finds out whether an HTTP client sent a request before the attempt that an error or a response reports.

Many clients retry by themselves, or follow redirects, and then report only the last attempt: "connection refused",
although the first attempt delivered the request. No attribute of the error shows the earlier attempts, but the frames
of its traceback do, and the history of a response. Nothing here is guessed: if they do not show it, the answer is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from traceback import walk_tb
from typing import Any, Final

from .outcome_fields import class_names, class_packages, response_metadata

#: Errors of HTTP clients, or reasons of such errors, that are raised before a byte of the request has been sent.
NEVER_LEFT: Final = frozenset(
    (
        *("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "InvalidURL"),
        *("ConnectTimeoutError", "NewConnectionError", "NameResolutionError", "EndpointConnectionError"),
        *("ClientConnectorError", "ConnectionRefusedError", "gaierror", "SSLCertVerificationError"),
    )
)
#: Redirects, missing authentication, rate limits: a server that answers with one has not executed the request.
NOT_EXECUTED_STATUSES: Final = frozenset((307, 308, 401, 407, 429))
#: Packages whose errors may come after earlier attempts, and whose frames show those. The others (httpx, urllib) retry
#: only to connect, or not at all.
RETRYING_PACKAGES: Final = frozenset(("requests", "urllib3", "botocore", "aiohttp", "stripe", "square"))


def sent_before_error(chain: Sequence[BaseException]) -> bool | None:
    """Whether the client had sent the request before the attempt that raised ``chain`` (an error and its causes). None:
    the frames do not show it."""
    packages_without_earlier_send = set()
    for link in chain:
        for frame, _ in walk_tb(link.__traceback__):
            function = frame.f_globals.get("__name__"), frame.f_code.co_name
            if function not in _RETRY_EVIDENCE:
                continue
            package, read = _RETRY_EVIDENCE[function]
            sent_before = read(frame.f_locals)
            if sent_before:
                return True
            if sent_before is False:
                packages_without_earlier_send.add(package)
    packages_that_retry = {package for link in chain for package in class_packages(link) & RETRYING_PACKAGES}
    if "requests" in packages_that_retry:  # urllib3 retries for it
        packages_that_retry = packages_that_retry - {"requests"} | {"urllib3"}
    # False only if every client that may have retried has shown that it did not.
    return False if packages_that_retry <= packages_without_earlier_send else None


def sent_before_answer(outcome: Any, response: Any) -> bool | None:
    """Whether the client had sent the request before it got ``response``, which ``outcome`` is or carries. None: it
    does not show it."""
    for source in (outcome, response):
        if response_metadata(source).get("RetryAttempts"):
            return True
        raw = getattr(source, "raw", source)
        for holder in (source, getattr(raw, "retries", None)):
            if _any_may_have_executed(getattr(holder, "history", None)):
                return True
    if not isinstance(outcome, BaseException):
        return None if _may_be_resent_by_aiohttp(outcome) else False
    sent_before = sent_before_error([outcome])
    if sent_before is None and class_packages(outcome).isdisjoint(("stripe", "square")):
        # The other clients show retries in their responses, which are read above.
        return None if _may_be_resent_by_aiohttp(getattr(outcome, "request_info", None)) else False
    return sent_before


def _any_may_have_executed(history: Any) -> bool | None:
    """Whether one of the attempts in ``history`` may have been executed; None: it is not a history."""
    return any(map(_may_have_executed, history)) if isinstance(history, list | tuple) else None


def _may_have_executed(entry: Any) -> bool:
    """Whether an earlier attempt may have been executed. ``entry``: urllib3's record of it, or the response to it."""
    request = entry if hasattr(entry, "method") else getattr(entry, "request", None)
    rewritten = getattr(entry, "redirect_location", None) is not None  # urllib3 records the next request's method here
    if getattr(request, "method", None) in ("GET", "HEAD", "OPTIONS") and not rewritten:
        return False
    error = getattr(entry, "error", None)
    if isinstance(error, BaseException):
        original = getattr(error, "original_error", error)
        return not class_names(original) & NEVER_LEFT
    return not {getattr(entry, "status_code", None), getattr(entry, "status", None)} & NOT_EXECUTED_STATUSES


def _may_be_resent_by_aiohttp(source: Any) -> bool:
    """Whether aiohttp may have sent it twice: it resends an idempotent method by itself, and does not show it."""
    is_aiohttp = type(source).__module__.partition(".")[0] == "aiohttp"
    return is_aiohttp and getattr(source, "method", None) in ("PUT", "DELETE")


FrameLocals = Mapping[str, Any]
ReadEvidence = Callable[[FrameLocals], bool | None]


def _is_above(name: str, limit: int) -> ReadEvidence:
    def read(variables: FrameLocals) -> bool | None:
        count = variables.get(name)
        return count > limit if isinstance(count, int) else None

    return read


def _history_in(name: str) -> ReadEvidence:
    return lambda variables: _any_may_have_executed(variables.get(name))


def _read_urllib3(variables: FrameLocals) -> bool | None:
    return _any_may_have_executed(getattr(variables.get("self"), "history", None))


def _read_aiohttp(variables: FrameLocals) -> bool | None:
    retries = getattr(variables.get("self"), "_retry_connection", False)
    may_resend = retries and variables.get("method") in ("PUT", "DELETE")
    if may_resend and variables.get("retry_persistent_connection") is False:
        return True
    return _any_may_have_executed(variables.get("history"))


def _read_stripe(variables: FrameLocals) -> bool | None:
    """A response shows only how many retries were allowed. If none were, this was the first attempt."""
    options, requestor = variables.get("options"), variables.get("requestor")
    allowed = options.get("max_network_retries") if isinstance(options, Mapping) else None
    if allowed is None:
        allowed = getattr(getattr(requestor, "_options", None), "max_network_retries", None)
    return False if allowed == 0 else None


def _read_urllib(variables: FrameLocals) -> bool | None:
    method = getattr(variables.get("req"), "get_method", str)()
    return method not in ("GET", "HEAD") and variables.get("code") not in NOT_EXECUTED_STATUSES


#: The functions of clients that retry, or follow redirects: the client's package, and what reads the local variables.
_RETRY_EVIDENCE: Final[Mapping[tuple[Any, str], tuple[str, ReadEvidence]]] = {
    ("urllib3.util.retry", "increment"): ("urllib3", _read_urllib3),
    ("requests.sessions", "resolve_redirects"): ("redirects", _history_in("hist")),
    ("httpx._client", "_send_handling_redirects"): ("redirects", _history_in("history")),
    ("urllib.request", "http_error_302"): ("redirects", _read_urllib),
    ("aiohttp.client", "_request"): ("aiohttp", _read_aiohttp),
    ("botocore.endpoint", "_send_request"): ("botocore", _is_above("attempts", 1)),
    ("aiobotocore.endpoint", "_send_request"): ("botocore", _is_above("attempts", 1)),
    ("stripe._http_client", "_request_with_retries_internal"): ("stripe", _is_above("num_retries", 0)),
    ("stripe._http_client", "_request_with_retries_internal_async"): ("stripe", _is_above("num_retries", 0)),
    ("stripe._api_requestor", "request"): ("stripe", _read_stripe),
    ("stripe._api_requestor", "request_async"): ("stripe", _read_stripe),
    ("square.core.http_client", "request"): ("square", _is_above("retries", 0)),
}
