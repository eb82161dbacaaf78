"""Reads the status, error codes and headers of a response or an exception, whatever library it comes from.

No SDK is imported. Attributes are looked up by name, as they are called in the responses of `httpx` and `requests`, and
in the errors of Stripe, PayPal, Square, Adyen, Twilio, gRPC and botocore.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import iscoroutine
from typing import Any, Final

_HTTP_CLIENTS: Final = ("httpx", "httpcore", "httpx2", "httpcore2", "requests", "urllib3", "urllib", "http", "aiohttp")
_SDKS: Final = ("botocore", "grpc", "grpclib", "stripe", "twilio", "square", "Adyen", "paypalhttp", "braintree")
#: Packages whose errors are about a request. An error of the same name from a database may have come after the effect.
CLIENT_PACKAGES: Final = frozenset((*_HTTP_CLIENTS, *_SDKS))

#: The HTTP status with the meaning of a gRPC code. RESOURCE_EXHAUSTED is not 429, since it may also mean that the reply
#: was too large; ALREADY_EXISTS is not 409, since it may be about what an earlier send created.
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


def class_packages(error: BaseException) -> frozenset[str]:
    """Return the packages that the classes of ``error`` come from."""
    return frozenset(kind.__module__.partition(".")[0] for kind in type(error).__mro__)


def class_names(error: BaseException) -> frozenset[str]:
    return frozenset(kind.__name__ for kind in type(error).__mro__)


def is_client_error(error: BaseException) -> bool:
    return not CLIENT_PACKAGES.isdisjoint(class_packages(error))


def error_chain(error: BaseException) -> list[BaseException]:
    """Return ``error``, its reason, the reason of that, and so on."""
    chain = [error]
    while len(chain) < 8:
        last = chain[-1]
        reasons = (getattr(last, "reason", None), last.__cause__, *last.args[:1])
        reason = next((reason for reason in reasons if isinstance(reason, BaseException)), None)
        if reason is None:
            break
        chain.append(reason)
    return chain


def find_status(*sources: Any) -> int | None:
    """Return the HTTP status of the first of ``sources`` that has one, or that of its gRPC code."""
    for source in sources:
        is_error = isinstance(source, BaseException)
        if is_error and (grpc_code := find_grpc_code(source)) is not None:
            return HTTP_STATUS_BY_GRPC_CODE[grpc_code]
        is_from_client = is_error and is_client_error(source)
        statuses = [getattr(source, "status_code", None), getattr(source, "http_status", None)]
        if is_from_client or hasattr(source, "headers"):  # "status" of any other object may mean anything
            statuses.append(getattr(source, "status", None))
        if is_from_client:
            statuses.append(_read_code(source))
        statuses.append(response_metadata(source).get("HTTPStatusCode"))
        for status in statuses:
            if isinstance(status, int) and 100 <= status <= 599:
                return status
    return None


def find_loose_status(error: BaseException) -> int | None:
    """Return a number that may be the status of an error. Use it only to conclude that the outcome is unknown."""
    candidates = (getattr(error, "status", None), _read_code(error))
    return next((status for status in candidates if isinstance(status, int) and 400 <= status <= 599), None)


def find_grpc_code(source: Any) -> str | None:
    """Return the name of the gRPC code of ``source``: from `code()`, or from the attribute of google.api_core or
    grpclib."""
    code = getattr(source, "grpc_status_code", None)
    if isinstance(source, BaseException) and code is None:
        packages = class_packages(source)
        if "grpc" in packages and callable(read := getattr(source, "code", None)):
            code = read()
        elif "grpclib" in packages:
            code = getattr(source, "status", None)
    name = getattr(code, "name", None)
    return name if name in HTTP_STATUS_BY_GRPC_CODE else None


def find_codes(*sources: Any) -> Iterator[str]:
    """Yield the provider's own codes: from attributes, and from the usual places of a JSON body."""
    for source in sources:
        yield from _codes(_read_code(source), *_attributes(source, "type", "error_code", "errorCode", "name"))
        body = source if isinstance(source, Mapping) else _find_body(source)
        if isinstance(body, Mapping):
            places = [body, body.get("error"), body.get("Error")]
            for entries in (body.get("errors"), body.get("details")):
                places += entries[:5] if isinstance(entries, list) else []
            for place in places:
                if isinstance(place, Mapping):
                    yield from _codes(*map(place.get, ("code", "Code", "type", "errorCode", "name", "issue")))


def find_header(name: str, *sources: Any) -> str | None:
    for source in sources:
        headers = getattr(source, "headers", None)
        if isinstance(headers, Mapping):
            for header, value in headers.items():
                if str(header).lower() == name.lower():
                    return str(value)
    return None


def response_metadata(source: Any) -> Mapping[str, Any]:
    """The metadata in a response of botocore, which is a dict. Empty if ``source`` is not one."""
    metadata = source.get("ResponseMetadata") if isinstance(source, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}


def _read_code(source: Any) -> Any:
    """The attribute ``code``. aiohttp's is left out: it repeats the status, and emits a warning when it is read."""
    return None if type(source).__module__.startswith("aiohttp.") else getattr(source, "code", None)


def _attributes(source: Any, *names: str) -> Iterator[Any]:
    return (getattr(source, name, None) for name in names)


def _codes(*values: Any) -> Iterator[str]:
    return (str(value) for value in values if isinstance(value, str | int) and not isinstance(value, bool))


def _find_body(source: Any) -> Any:
    for body in _attributes(source, "json_body", "body"):
        if isinstance(body, Mapping):
            return body
    read = getattr(source, "json", None)
    if not callable(read):
        return None
    try:
        body = read()
    except Exception:  # not JSON, or not read yet: the status has to be enough
        return None
    if iscoroutine(body):  # of an async client
        body.close()
        return None
    return body
