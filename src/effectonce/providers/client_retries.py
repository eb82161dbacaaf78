"""Finding out whether an HTTP client had sent a request before the try that its error or response is about.

Many clients retry by themselves, or follow redirects, and then report only the last try: "connection refused", although
the first try delivered the request. No attribute of the error shows the earlier tries; but the frames of its traceback,
and the history of a response, do. Nothing here is guessed: where they do not show it, the answer is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

#: What HTTP clients raise, or have as the reason of what they raise, before a byte of the request has left.
NEVER_LEFT: Final = frozenset(
    (
        *("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "InvalidURL"),
        *("ConnectTimeoutError", "NewConnectionError", "NameResolutionError", "EndpointConnectionError"),
        *("ClientConnectorError", "ConnectionRefusedError", "gaierror", "SSLCertVerificationError"),
    )
)
#: Statuses that say: not here, not now, not you. Whoever gave one has not executed the request.
NOT_EXECUTED_STATUSES: Final = frozenset((307, 308, 401, 407, 429))
#: Whose errors may come after tries of their own, and whose frames show it. Of the others (httpx, urllib) only connects
#: are tried again, or nothing.
RETRY_LAYER_BY_PACKAGE: Final = {
    "requests": "urllib3",
    "urllib3": "urllib3",
    "botocore": "botocore",
    "aiohttp": "aiohttp",
    "stripe": "stripe",
    "square": "square",
}


def class_packages(error: BaseException) -> frozenset[str]:
    """Return the packages that the classes of ``error`` come from."""
    return frozenset(kind.__module__.partition(".")[0] for kind in type(error).__mro__)


def class_names(error: BaseException) -> frozenset[str]:
    return frozenset(kind.__name__ for kind in type(error).__mro__)


def error_chain(error: BaseException) -> list[BaseException]:
    """Return ``error``, its reason, the reason of that, and so on."""
    chain = [error]
    while len(chain) < 8:
        last = chain[-1]
        inner = (getattr(last, "reason", None), last.__cause__, *last.args[:1])
        link = next((each for each in inner if isinstance(each, BaseException)), None)
        if link is None:
            break
        chain.append(link)
    return chain


def sent_before_error(chain: Sequence[BaseException]) -> bool | None:
    """Whether the client of an error had sent the request before the try that ``chain`` tells of; None: not shown."""
    shown = set()
    for link in chain:
        for frame in _iter_frames(link):
            where = frame.f_globals.get("__name__"), frame.f_code.co_name
            if where not in _RETRY_EVIDENCE:
                continue
            layer, read = _RETRY_EVIDENCE[where]
            before = read(frame.f_locals)
            if before:
                return True
            if before is False:
                shown.add(layer)
    needed = {
        RETRY_LAYER_BY_PACKAGE[origin]
        for link in chain
        for origin in class_packages(link)
        if origin in RETRY_LAYER_BY_PACKAGE
    }
    return False if needed <= shown else None


def sent_before_answer(outcome: Any, response: Any) -> bool | None:
    """Whether the client had sent the request before it got this answer; None: it may have, and does not say."""
    for source in (outcome, response):
        if isinstance(source, Mapping):
            metadata = source.get("ResponseMetadata")
            if isinstance(metadata, Mapping) and metadata.get("RetryAttempts"):
                return True
        raw = getattr(source, "raw", source)
        for holder in (source, getattr(raw, "retries", None)):
            if _any_may_have_executed(getattr(holder, "history", None)):
                return True
    if not isinstance(outcome, BaseException):
        return None if _may_be_resent_by_aiohttp(outcome) else False
    before = sent_before_error([outcome])
    if before is None and not class_packages(outcome) & {
        "stripe",
        "square",
    }:
        # The other clients show retries in their answers, which are read above.
        return None if _may_be_resent_by_aiohttp(getattr(outcome, "request_info", None)) else False
    return before


def _iter_frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _any_may_have_executed(history: Any) -> bool | None:
    """Whether one of the tries in ``history`` may have been executed; None: it is no history."""
    return any(map(_may_have_executed, history)) if isinstance(history, list | tuple) else None


def _may_have_executed(entry: Any) -> bool:
    """Of urllib3's record of a try, or of the response to one."""
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
    """It sends what is idempotent in HTTP's sense once more, and does not tell."""
    at_home = type(source).__module__.partition(".")[0] == "aiohttp"
    return at_home and getattr(source, "method", None) in ("PUT", "DELETE")


FrameLocals = Mapping[str, Any]


def _count_above(name: str, least: int) -> Callable[[FrameLocals], bool | None]:
    def read(found: FrameLocals) -> bool | None:
        count = found.get(name)
        return count > least if isinstance(count, int) else None

    return read


def _history_in(name: str) -> Callable[[FrameLocals], bool | None]:
    return lambda found: _any_may_have_executed(found.get(name))


def _read_urllib3(found: FrameLocals) -> bool | None:
    return _any_may_have_executed(getattr(found.get("self"), "history", None))


def _read_aiohttp(found: FrameLocals) -> bool | None:
    may = getattr(found.get("self"), "_retry_connection", False) and found.get("method") in ("PUT", "DELETE")
    if may and found.get("retry_persistent_connection") is False:
        return True
    return _any_may_have_executed(found.get("history"))


def _read_stripe(found: FrameLocals) -> bool | None:
    """Of an answer only what it was allowed is left to see: with no retries it was the first."""
    options, requestor = found.get("options"), found.get("requestor")
    allowed = options.get("max_network_retries") if isinstance(options, Mapping) else None
    if allowed is None:
        allowed = getattr(getattr(requestor, "_options", None), "max_network_retries", None)
    return False if allowed == 0 else None


def _read_urllib(found: FrameLocals) -> bool | None:
    asked = getattr(found.get("req"), "get_method", str)()
    return asked not in ("GET", "HEAD") and found.get("code") not in NOT_EXECUTED_STATUSES


#: The functions of clients that try again, or follow a redirect: which of their variables says so.
_RETRY_EVIDENCE: Final[Mapping[tuple[Any, str], tuple[str, Callable[[FrameLocals], bool | None]]]] = {
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
