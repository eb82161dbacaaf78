"""What an operator says about a request in doubt: that it took effect, and with which response."""

from __future__ import annotations

import re
import time
from typing import Any, Final

from msgspec import json

from effectonce.errors import InvalidOption, show

from .protocol import NEVER_STORED_HEADERS, Response, has_body

_RECORD_KEY: Final = re.compile(r"\S{1,16} .+ [0-9a-f]{64}", re.DOTALL)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_SHAPE: Final = 'an HTTP request\'s result is its response: {"status": 201, "headers": {"location": "/o/1"}, "body": …}'


def is_request_key(key: str) -> bool:
    """Tell whether ``key`` is that of a request's record, as `record_key` makes it."""
    return _RECORD_KEY.fullmatch(key) is not None


def parse_decided_result(key: str, result: Any) -> Any:
    """Return the result to store where an operator decided that the effect of ``key`` happened.

    For a request it is a response: ``{"status": …, "headers": {…}, "body": …}``, with text or JSON as its body. Where
    the operator gave none (``...``), it is None, by which the middleware tells the client who decided. The result of
    any other record is returned as it is. Raises `InvalidOption` for what is not a response.
    """
    if not is_request_key(key):
        return result
    return None if result is ... else _parse_response(result)


def _parse_response(result: Any) -> Response:
    if not isinstance(result, dict) or not result.keys() <= {"status", "headers", "body"}:
        raise InvalidOption(f"{_SHAPE}; not {show(json.encode(result).decode())}")
    status, headers, body = result.get("status"), result.get("headers", {}), result.get("body")
    if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 599:
        raise InvalidOption(f"{_SHAPE}; its status is a whole number from 200 to 599")
    if not isinstance(headers, dict) or not all(map(_is_header, headers.items())):
        raise InvalidOption(f"{_SHAPE}; its headers are an object of text")
    names = {name.lower() for name in headers}
    if names & NEVER_STORED_HEADERS:
        raise InvalidOption(
            f"{', '.join(sorted(names & NEVER_STORED_HEADERS))}: the middleware never replays this header"
        )
    if body is not None and not has_body(status):
        raise InvalidOption(f"a response with status {status} has no body")
    content_type = "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
    if body is not None and "content-type" not in names:
        headers = {**headers, "content-type": content_type}
    content = b"" if body is None else body.encode() if isinstance(body, str) else json.encode(body)
    return Response(status, [*headers.items()], content, stored_at=time.time())


def _is_header(header: tuple[str, Any]) -> bool:
    name, value = header
    return bool(_HEADER_NAME.fullmatch(name)) and isinstance(value, str) and bool(_HEADER_VALUE.fullmatch(value))
