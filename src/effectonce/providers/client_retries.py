"""Whether an HTTP client had sent a request before what it says of it.

Many try again by themselves, or follow redirects, and then tell only of the last try: "connection refused", of what
the first try delivered. What came before is in no attribute of the error; but the frames of its traceback, and the
history of a response, show it. Nothing here is guessed: where they do not show it, the answer is None.
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
TURNED_AWAY: Final = frozenset((307, 308, 401, 407, 429))
#: Whose errors may come after tries of their own, and whose frames show it. Of the others (httpx, urllib) only connects
#: are tried again, or nothing.
RETRYING: Final = {
    "requests": "urllib3",
    "urllib3": "urllib3",
    "botocore": "botocore",
    "aiohttp": "aiohttp",
    "stripe": "stripe",
    "square": "square",
}


def origins(error: BaseException) -> frozenset[str]:
    """The packages that the classes of ``error`` come from."""
    return frozenset(kind.__module__.partition(".")[0] for kind in type(error).__mro__)


def names(error: BaseException) -> frozenset[str]:
    return frozenset(kind.__name__ for kind in type(error).__mro__)


def links(error: BaseException) -> list[BaseException]:
    """``error``, its reason, the reason of that, and so on."""
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
        for frame in _frames(link):
            where = frame.f_globals.get("__name__"), frame.f_code.co_name
            if where not in _SHOWN_BY:
                continue
            layer, read = _SHOWN_BY[where]
            before = read(frame.f_locals)
            if before:
                return True
            if before is False:
                shown.add(layer)
    needed = {RETRYING[origin] for link in chain for origin in origins(link) if origin in RETRYING}
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
            if _delivered(getattr(holder, "history", None)):
                return True
    if not isinstance(outcome, BaseException):
        return None if _tried_again_by_aiohttp(outcome) else False
    before = sent_before_error([outcome])
    if before is None and not origins(outcome) & {"stripe", "square"}:  # the others say so in their answers, see above
        return None if _tried_again_by_aiohttp(getattr(outcome, "request_info", None)) else False
    return before


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _delivered(history: Any) -> bool | None:
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
        return not names(original) & NEVER_LEFT
    return not {getattr(entry, "status_code", None), getattr(entry, "status", None)} & TURNED_AWAY


def _tried_again_by_aiohttp(source: Any) -> bool:
    """It sends what is idempotent in HTTP's sense once more, and does not tell."""
    at_home = type(source).__module__.partition(".")[0] == "aiohttp"
    return at_home and getattr(source, "method", None) in ("PUT", "DELETE")


Locals = Mapping[str, Any]


def _more_than(name: str, least: int) -> Callable[[Locals], bool | None]:
    def read(found: Locals) -> bool | None:
        count = found.get(name)
        return count > least if isinstance(count, int) else None

    return read


def _history(name: str) -> Callable[[Locals], bool | None]:
    return lambda found: _delivered(found.get(name))


def _of_urllib3(found: Locals) -> bool | None:
    return _delivered(getattr(found.get("self"), "history", None))


def _of_aiohttp(found: Locals) -> bool | None:
    may = getattr(found.get("self"), "_retry_connection", False) and found.get("method") in ("PUT", "DELETE")
    if may and found.get("retry_persistent_connection") is False:
        return True
    return _delivered(found.get("history"))


def _of_stripe(found: Locals) -> bool | None:
    """Of an answer only what it was allowed is left to see: with no retries it was the first."""
    options, requestor = found.get("options"), found.get("requestor")
    allowed = options.get("max_network_retries") if isinstance(options, Mapping) else None
    if allowed is None:
        allowed = getattr(getattr(requestor, "_options", None), "max_network_retries", None)
    return False if allowed == 0 else None


def _of_urllib(found: Locals) -> bool | None:
    asked = getattr(found.get("req"), "get_method", str)()
    return asked not in ("GET", "HEAD") and found.get("code") not in TURNED_AWAY


#: The functions of clients that try again, or follow a redirect: which of their variables says so.
_SHOWN_BY: Final[Mapping[tuple[Any, str], tuple[str, Callable[[Locals], bool | None]]]] = {
    ("urllib3.util.retry", "increment"): ("urllib3", _of_urllib3),
    ("requests.sessions", "resolve_redirects"): ("redirects", _history("hist")),
    ("httpx._client", "_send_handling_redirects"): ("redirects", _history("history")),
    ("urllib.request", "http_error_302"): ("redirects", _of_urllib),
    ("aiohttp.client", "_request"): ("aiohttp", _of_aiohttp),
    ("botocore.endpoint", "_send_request"): ("botocore", _more_than("attempts", 1)),
    ("aiobotocore.endpoint", "_send_request"): ("botocore", _more_than("attempts", 1)),
    ("stripe._http_client", "_request_with_retries_internal"): ("stripe", _more_than("num_retries", 0)),
    ("stripe._http_client", "_request_with_retries_internal_async"): ("stripe", _more_than("num_retries", 0)),
    ("stripe._api_requestor", "request"): ("stripe", _of_stripe),
    ("stripe._api_requestor", "request_async"): ("stripe", _of_stripe),
    ("square.core.http_client", "request"): ("square", _more_than("retries", 0)),
}
