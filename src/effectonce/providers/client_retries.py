"""Finding out whether an HTTP client had sent a request before the try that its error or response is about.

Many clients retry by themselves, or follow redirects, and then report only the last try: "connection refused", although
the first try delivered the request. No attribute of the error shows the earlier tries; but the frames of its traceback,
and the history of a response, do. Nothing here is guessed: where they do not show it, the answer is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from traceback import walk_tb
from typing import Any, Final

from .outcome_fields import class_names, class_packages, response_metadata

#: Errors of HTTP clients, or their reasons, that come before a byte of the request has left.
NEVER_LEFT: Final = frozenset(
    (
        *("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "InvalidURL"),
        *("ConnectTimeoutError", "NewConnectionError", "NameResolutionError", "EndpointConnectionError"),
        *("ClientConnectorError", "ConnectionRefusedError", "gaierror", "SSLCertVerificationError"),
    )
)
#: Statuses that say: not here, not now, not you. A server that gave one has not executed the request.
NOT_EXECUTED_STATUSES: Final = frozenset((307, 308, 401, 407, 429))
#: Packages whose errors may come after earlier tries, and whose frames show those. The others (httpx, urllib) retry
#: connects only, or nothing.
RETRYING_PACKAGES: Final = frozenset(("requests", "urllib3", "botocore", "aiohttp", "stripe", "square"))


def sent_before_error(chain: Sequence[BaseException]) -> bool | None:
    """Whether the client of an error had sent the request before the try that ``chain`` is about; None: not shown."""
    shown = set()
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
                shown.add(package)
    packages = {package for link in chain for package in class_packages(link) if package in RETRYING_PACKAGES}
    if "requests" in packages:  # urllib3 retries for it
        packages = packages - {"requests"} | {"urllib3"}
    return False if packages <= shown else None


def sent_before_answer(outcome: Any, response: Any) -> bool | None:
    """Whether the client had sent the request before it got this answer; None: it may have, and does not say."""
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
        # The other clients show retries in their answers, which are read above.
        return None if _may_be_resent_by_aiohttp(getattr(outcome, "request_info", None)) else False
    return sent_before


def _any_may_have_executed(history: Any) -> bool | None:
    """Whether one of the tries in ``history`` may have been executed; None: it is no history."""
    return any(map(_may_have_executed, history)) if isinstance(history, list | tuple) else None


def _may_have_executed(entry: Any) -> bool:
    """Whether one earlier try may have been executed. ``entry``: urllib3's record of it, or the response to it."""
    asked = entry if hasattr(entry, "method") else getattr(entry, "request", None)
    rewritten = getattr(entry, "redirect_location", None) is not None  # by urllib3: what it asks there
    if getattr(asked, "method", None) in ("GET", "HEAD", "OPTIONS") and not rewritten:
        return False
    error = getattr(entry, "error", None)
    if isinstance(error, BaseException):
        original = getattr(error, "original_error", error)
        return not class_names(original) & NEVER_LEFT
    return not {getattr(entry, "status_code", None), getattr(entry, "status", None)} & NOT_EXECUTED_STATUSES


def _may_be_resent_by_aiohttp(source: Any) -> bool:
    """aiohttp sends a request that is idempotent in HTTP's sense once more, and does not say so."""
    is_aiohttp = type(source).__module__.partition(".")[0] == "aiohttp"
    return is_aiohttp and getattr(source, "method", None) in ("PUT", "DELETE")


FrameLocals = Mapping[str, Any]
ReadEvidence = Callable[[FrameLocals], bool | None]


def _count_above(name: str, least: int) -> ReadEvidence:
    def read(variables: FrameLocals) -> bool | None:
        count = variables.get(name)
        return count > least if isinstance(count, int) else None

    return read


def _history_in(name: str) -> ReadEvidence:
    return lambda variables: _any_may_have_executed(variables.get(name))


def _read_urllib3(variables: FrameLocals) -> bool | None:
    return _any_may_have_executed(getattr(variables.get("self"), "history", None))


def _read_aiohttp(variables: FrameLocals) -> bool | None:
    may = getattr(variables.get("self"), "_retry_connection", False) and variables.get("method") in ("PUT", "DELETE")
    if may and variables.get("retry_persistent_connection") is False:
        return True
    return _any_may_have_executed(variables.get("history"))


def _read_stripe(variables: FrameLocals) -> bool | None:
    """Of an answer, only the number of allowed retries is left to see: with none it was the first."""
    options, requestor = variables.get("options"), variables.get("requestor")
    allowed = options.get("max_network_retries") if isinstance(options, Mapping) else None
    if allowed is None:
        allowed = getattr(getattr(requestor, "_options", None), "max_network_retries", None)
    return False if allowed == 0 else None


def _read_urllib(variables: FrameLocals) -> bool | None:
    asked = getattr(variables.get("req"), "get_method", str)()
    return asked not in ("GET", "HEAD") and variables.get("code") not in NOT_EXECUTED_STATUSES


#: By function of a client that tries again, or follows a redirect: its package, and how its variables show that.
_RETRY_EVIDENCE: Final[Mapping[tuple[Any, str], tuple[str, ReadEvidence]]] = {
    ("urllib3.util.retry", "increment"): ("urllib3", _read_urllib3),
    ("requests.sessions", "resolve_redirects"): ("redirects", _history_in("hist")),
    ("httpx._client", "_send_handling_redirects"): ("redirects", _history_in("history")),
    ("urllib.request", "http_error_302"): ("redirects", _read_urllib),
    ("aiohttp.client", "_request"): ("aiohttp", _read_aiohttp),
    ("botocore.endpoint", "_send_request"): ("botocore", _count_above("attempts", 1)),
    ("aiobotocore.endpoint", "_send_request"): ("botocore", _count_above("attempts", 1)),
    ("stripe._http_client", "_request_with_retries_internal"): ("stripe", _count_above("num_retries", 0)),
    ("stripe._http_client", "_request_with_retries_internal_async"): ("stripe", _count_above("num_retries", 0)),
    ("stripe._api_requestor", "request"): ("stripe", _read_stripe),
    ("stripe._api_requestor", "request_async"): ("stripe", _read_stripe),
    ("square.core.http_client", "request"): ("square", _count_above("retries", 0)),
}
