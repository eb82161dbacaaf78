"""The protocol of Idempotency-Key, as pure functions: reading the header, keys and fingerprints, stored responses.

It follows draft-ietf-httpapi-idempotency-key-header-07 and RFC 9651 (structured fields), and does no I/O. Headers are
(name, value) pairs of text, decoded as ISO 8859-1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec

from effectonce.core.codec import Codec, Unstorable
from effectonce.errors import (
    CorruptRecord,
    InvalidKey,
    KeyTooLong,
    MissingDriver,
    MissingKey,
    PayloadTooLarge,
    ResultNotStored,
    show,
)
from effectonce.keys import Key, encode_key

KEY_HEADER: Final = "idempotency-key"
REPLAYED_HEADER: Final = "idempotent-replayed"
RETENTION_HEADER: Final = "idempotency-key-retention"
"""The published expiry policy: for how many seconds a finished request is replayed."""

MAX_LENGTH_DIGITS: Final = 18  # of a Content-Length: a longer number is over any limit, and slow to parse
#: Adapters keep a request's body in memory up to this size, and in a temporary file beyond it.
MAX_BODY_IN_MEMORY_BYTES: Final = 1024 * 1024
BODY_CHUNK_BYTES: Final = 65_536
UNSAFE_METHODS: Final = ("POST", "PATCH", "PUT", "DELETE")

DRAFT_URL: Final = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"
"""Where problems link to, unless the API has a page of its own."""

_CONTENT_HEADERS: Final = ("content-type", "content-encoding", "content-language", "content-disposition")
_RESOURCE_HEADERS: Final = ("content-location", "location", "etag", "last-modified", "link", "deprecation", "sunset")
_CACHE_HEADERS: Final = ("cache-control", "expires", "vary", "retry-after")
#: The response headers that are stored. All others belong to one request, one connection or one client.
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
#: The response headers that no route may store: secrets of one client, or made for each response.
NEVER_STORED_HEADERS: Final = frozenset(
    (*_CREDENTIAL_HEADERS, *_CHALLENGE_HEADERS, *_CONNECTION_HEADERS, *_MESSAGE_HEADERS)
)

Headers = list[tuple[str, str]]


# -- the request


#: A key without quotes. RFC 9651 lets a token begin with a letter or "*" only; most clients send a bare UUID.
_BARE_KEY: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-][!#$%&'*+.^_`|~0-9A-Za-z:/-]*")

_BARE_NUMBER: Final = re.compile(rb"-?[0-9]+(\.[0-9]+)?")


def parse_key(values: Sequence[bytes], limit: int = 255) -> str:
    """Return the key in the lines of the header: a structured-field string, or a bare token.

    ``"k"`` and ``k`` are the same key; parameters are ignored. A bare number is not a string, so it is refused, as the
    draft says. Raises `MissingKey` if there is no line, and `InvalidKey` for anything else, so that a request with a
    broken key never runs as if it had none.
    """
    if not values:
        raise MissingKey("the request has no Idempotency-Key, and its route requires one")
    if len(values) != 1:
        raise InvalidKey(f"the request has {len(values)} Idempotency-Key headers; send one")
    raw = values[0].strip(b" \t")
    if len(raw) > 2 * limit + 64:  # too long even with every character escaped
        raise KeyTooLong(f"the Idempotency-Key header is over {limit} characters")
    if _BARE_NUMBER.fullmatch(raw):
        raise InvalidKey('the Idempotency-Key header is a number, and must be a string: send it in quotes, as in "123"')
    if _BARE_KEY.fullmatch(raw):
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
    """Raise `PayloadTooLarge` if a request's Content-Length is over ``limit``, before its body is read."""
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
    """Return the key of the record, for `Store.get`, `resolve` and `forget`: ``POST /charges 9f86d0…``.

    It ends with the SHA-256 of principal, method, path and key, each prefixed with its length. So requests that differ
    in any of these never share a record, and logs show neither caller nor key.
    """
    # A path may have been decoded from bytes that are not UTF-8.
    parts = [part.encode("utf-8", "surrogatepass") for part in (encode_key(principal), method, path, key)]
    joined = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return f"{show(method, 16)} {show(path)} {hashlib.sha256(joined).hexdigest()}"


FingerprintState: TypeAlias = "hashlib._Hash"


def fingerprint_state(method: str, path: bytes, query: bytes) -> FingerprintState:
    """Start the hash that is updated with the body; `fingerprint` ends it. Headers are left out: they may change from
    try to try."""
    verb = method.encode("latin-1", "replace")
    return hashlib.sha256(b"%d:%b%d:%b%d:%b" % (len(verb), verb, len(path), path, len(query), query))


def fingerprint(state: FingerprintState) -> bytes:
    """Return the fingerprint as claims send it, with its version as the first byte."""
    return b"\x81" + state.digest()


# -- responses


class Response(msgspec.Struct, omit_defaults=True):
    """A response as it is stored, and as the middleware sends it. Its ``body`` is None if it was too long to store."""

    status: int
    headers: Headers = []
    body: bytes | None = b""
    stored_at: float = 0.0  # seconds since the epoch, where a profile has a replay window


class ResponseUnknown(ResultNotStored):
    """An operator decided that the request took effect, and did not say with which response."""


class ResponseCodec(Codec):
    """Encodes responses as results of records, with bodies of up to ``cap`` bytes."""

    __slots__ = ("_cap",)

    def __init__(self, cap: int) -> None:
        super().__init__(Response, cap * 4 // 3 + 65_536)  # the body as base64, and room for the headers
        self._cap = cap

    def encode(self, value: Response) -> bytes:
        if value.body is None:
            raise Unstorable(f"the response is over max_response={self._cap}")
        return super().encode(value)

    def decode(self, stored: bytes) -> Response:
        """Decode a stored response. Raises `ResponseUnknown` for other JSON, which an operator has entered, and
        `CorruptRecord` for all else."""
        try:
            response: Response = super().decode(stored)
        except CorruptRecord as error:
            try:
                _OPERATORS_RESULT.decode(stored)
            except CorruptRecord:
                raise error from None
            raise ResponseUnknown("an operator decided that it is done; its result is not a response") from error
        return response


_OPERATORS_RESULT: Final = Codec(Any, 0)


def headers_to_store(headers: Iterable[tuple[str, str]], allowed: frozenset[str]) -> Headers:
    """Return the headers whose names are ``allowed``: those that are stored with a response."""
    return [(name, value) for name, value in headers if name.lower() in allowed]


def replay(stored: Response, retention: int) -> Response:
    """Return the response that answers a duplicate: the stored one, marked as replayed, with its Content-Length."""
    headers = [*stored.headers, *retention_headers(retention), (REPLAYED_HEADER, "true")]
    body = stored.body or b""
    if has_body(stored.status):
        headers.append(("content-length", str(len(body))))
    return Response(stored.status, headers, body)


def has_body(status: int) -> bool:
    """Tell whether a response with this ``status`` may have a body and a Content-Length."""
    return status >= 200 and status not in (204, 304)


def retention_headers(retention: int) -> Headers:
    """Return the header that publishes how long a key is kept, from the retention in microseconds."""
    return [(RETENTION_HEADER, str(retention // 1_000_000))]
