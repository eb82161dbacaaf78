"""Idempotency-Key over HTTP, as values: the header, the identity, the fingerprint and stored responses.

After draft-ietf-httpapi-idempotency-key-header-07 and RFC 9651 (structured fields). Pure: no clock, no I/O. Headers are
(name, value) pairs of text, as ISO 8859-1 reads them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec

from effectonce.core.codec import Codec, Unstorable
from effectonce.errors import InvalidKey, KeyTooLong, MissingDriver, MissingKey, PayloadTooLarge, show
from effectonce.keys import Key, encode_key

KEY_HEADER: Final = "idempotency-key"
REPLAYED_HEADER: Final = "idempotent-replayed"
RETENTION_HEADER: Final = "idempotency-key-retention"
"""The published expiry policy: for how many seconds a finished request is replayed."""

MAX_LENGTH_DIGITS: Final = 18  # of a Content-Length: more are too large for any limit, and slow to read
UNSAFE_METHODS: Final = ("POST", "PATCH", "PUT", "DELETE")

DRAFT_URL: Final = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"
"""Where problems link to, unless the API has a page of its own."""

_CONTENT_HEADERS: Final = ("content-type", "content-encoding", "content-language", "content-disposition")
_RESOURCE_HEADERS: Final = ("content-location", "location", "etag", "last-modified", "link", "deprecation", "sunset")
_CACHE_HEADERS: Final = ("cache-control", "expires", "vary", "retry-after")
#: The response headers that are stored. Others belong to one exchange, one connection or one client.
STORED_HEADERS: Final = frozenset((*_CONTENT_HEADERS, *_RESOURCE_HEADERS, *_CACHE_HEADERS))

_CREDENTIAL_HEADERS: Final = ("set-cookie", "set-cookie2", "authorization", "proxy-authorization")
_CHALLENGE_HEADERS: Final = (
    "www-authenticate",
    "authentication-info",
    "proxy-authenticate",
    "proxy-authentication-info",
)
_CONNECTION_HEADERS: Final = ("connection", "keep-alive", "proxy-connection", "te", "trailer", "trailers", "upgrade")
_MESSAGE_HEADERS: Final = ("date", "content-length", "transfer-encoding")
#: The response headers that no route may store: they are another client's secrets, or made anew for each reply.
NEVER_STORED_HEADERS: Final = frozenset(
    (*_CREDENTIAL_HEADERS, *_CHALLENGE_HEADERS, *_CONNECTION_HEADERS, *_MESSAGE_HEADERS)
)

Headers = list[tuple[str, str]]


# -- the request


#: A key without quotes. RFC 9651 lets a token begin with a letter or "*" only; most clients send a bare UUID.
_BARE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-][!#$%&'*+.^_`|~0-9A-Za-z:/-]*")


def parse_key(values: Sequence[bytes], limit: int = 255) -> str:
    """The key that the header's field lines carry: a structured-field string, or a bare token.

    ``"k"`` and ``k`` are the same key; parameters are ignored. `MissingKey` where there is no such line; `InvalidKey`
    for anything else, so that a request with a broken key never runs as one without.
    """
    if not values:
        raise MissingKey("the request has no Idempotency-Key, and its route requires one")
    if len(values) != 1:
        raise InvalidKey(f"the request has {len(values)} Idempotency-Key headers; send one")
    raw = values[0].strip(b" \t")
    if len(raw) > 2 * limit + 64:  # longer than with every character escaped: no parser is needed to tell
        raise KeyTooLong(f"the Idempotency-Key header is over {limit} characters")
    if _BARE.fullmatch(raw):
        key = raw.decode("ascii")
    else:
        http_sf = load_parser()
        try:
            value = http_sf.parse(raw, tltype="item")[0]
        except http_sf.StructuredFieldError as reason:
            raise InvalidKey(f"the Idempotency-Key header is not a structured-field string: {show(reason)}") from reason
        if not isinstance(value, str | http_sf.Token):
            raise InvalidKey(f"the Idempotency-Key header is not a string but a {type(value).__name__}")
        key = str(value)
    if not key:
        raise InvalidKey("the Idempotency-Key header is an empty string")
    if len(key) > limit:
        raise KeyTooLong(f"the Idempotency-Key has {len(key)} characters, more than the {limit} that are allowed")
    return key


def check_announced_length(length: str, limit: int) -> None:
    """Raise `PayloadTooLarge` where a request's Content-Length is over ``limit``, before its body is read."""
    if length.isdecimal() and (len(length) > MAX_LENGTH_DIGITS or int(length) > limit):
        raise PayloadTooLarge(f"the body is over max_body={limit}, by its Content-Length")


@cache
def load_parser() -> Any:
    """Import the parser of structured fields. Called at start-up, too, so that `MissingDriver` is raised there and not
    at the first quoted key."""
    try:
        import http_sf
    except ImportError as error:
        raise MissingDriver("HTTP needs http-sf: pip install 'effectonce[http]'") from error
    return http_sf


# -- identity and fingerprint


def record_key(principal: Key, method: str, path: str, key: str) -> str:
    """The key of the record, for `Store.get`, `resolve` and `forget`: ``POST /charges 9f86d0…``.

    The SHA-256 is of the length-prefixed (principal, method, path, key), so that requests that differ in any of these
    never share a record, and neither caller nor key can be read in a log. Method and path stand before it for people.
    """
    # A path may have been decoded from bytes that are not UTF-8.
    parts = [part.encode("utf-8", "surrogatepass") for part in (encode_key(principal), method, path, key)]
    joined = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return f"{show(method, 16)} {show(path)} {hashlib.sha256(joined).hexdigest()}"


FingerprintState: TypeAlias = "hashlib._Hash"


def fingerprint_state(method: str, path: bytes, query: bytes) -> FingerprintState:
    """The hash to update with the body; `fingerprint` ends it. Headers are left out: they change from try to try."""
    verb = method.encode("latin-1", "replace")
    return hashlib.sha256(b"%d:%b%d:%b%d:%b" % (len(verb), verb, len(path), path, len(query), query))


def fingerprint(state: FingerprintState) -> bytes:
    """The fingerprint in the form that claims send, its version first."""
    return b"\x81" + state.digest()


# -- responses


class Response(msgspec.Struct):
    """A response as it is stored, and as the middleware sends it. ``body`` None: over the cap, so never stored."""

    status: int
    headers: Headers = []
    body: bytes | None = b""


class ResponseCodec(Codec):
    """Responses as stored results: bodies byte by byte, up to ``cap``."""

    __slots__ = ("_cap",)

    def __init__(self, cap: int) -> None:
        super().__init__(Response, cap * 4 // 3 + 65_536)  # the body as base64, and room for the headers
        self._cap = cap

    def encode(self, value: Response) -> bytes:
        if value.body is None:
            raise Unstorable(f"the response is over max_response={self._cap}")
        return super().encode(value)


def headers_to_store(headers: Iterable[tuple[str, str]], allowed: frozenset[str]) -> Headers:
    """The headers that are stored with a response: those whose names are ``allowed``."""
    return [(name, value) for name, value in headers if name.lower() in allowed]


def replay(stored: Response, retention: int) -> Response:
    """A stored response as it goes out again: marked, and with its length where a body may be."""
    headers = [*stored.headers, *retention_headers(retention), (REPLAYED_HEADER, "true")]
    body = stored.body or b""
    if has_body(stored.status):
        headers.append(("content-length", str(len(body))))
    return Response(stored.status, headers, body)


def has_body(status: int) -> bool:
    """Whether a client expects a body, or its length, after the headers of a response with this ``status``."""
    return status >= 200 and status not in (204, 304)


def retention_headers(retention: int) -> Headers:
    """The expiry policy, from the retention in microseconds."""
    return [(RETENTION_HEADER, str(retention // 1_000_000))]
