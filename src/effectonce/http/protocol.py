"""Idempotency-Key over HTTP, as values: the header, the identity, the fingerprint, stored responses and problems.

After draft-ietf-httpapi-idempotency-key-header-07, RFC 9651 (structured fields) and RFC 9457 (problem details). Pure:
no clock, no I/O. Headers are (name, value) pairs of text, as ISO 8859-1 reads them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from effectonce.core.codec import Codec, Unstorable
from effectonce.errors import (
    AttemptsExhausted,
    EffectOnceError,
    InDoubt,
    InProgress,
    InvalidKey,
    KeyTooLong,
    LeaseLost,
    MissingDriver,
    MissingKey,
    MissingPrincipal,
    PayloadMismatch,
    PayloadTooLarge,
    PermanentFailure,
    Reentered,
    ResultNotStored,
    Retryable,
    show,
)
from effectonce.keys import Key, encode_key

KEY: Final = "idempotency-key"
REPLAYED: Final = "idempotent-replayed"
RETENTION: Final = "idempotency-key-retention"
"""The published expiry policy: for how many seconds a finished request is replayed."""

DRAFT: Final = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"
"""Where problems link to, unless the API has a page of its own."""

#: The response headers that are stored. Others belong to one exchange, one connection or one client.
KEPT: Final = frozenset(
    (
        "content-type",
        "content-encoding",
        "content-language",
        "content-disposition",
        "content-location",
        "location",
        "etag",
        "last-modified",
        "cache-control",
        "expires",
        "vary",
        "link",
        "retry-after",
        "deprecation",
        "sunset",
    )
)

#: What is never stored: another's session, a challenge, a connection's business, and what is made anew for each reply.
DROPPED: Final = frozenset(
    (
        "set-cookie",
        "set-cookie2",
        "www-authenticate",
        "authentication-info",
        "proxy-authenticate",
        "proxy-authentication-info",
        "authorization",
        "proxy-authorization",
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
        "date",
        "content-length",
    )
)

Headers = list[tuple[str, str]]


# -- the header


#: A key without quotes. RFC 9651 lets a token begin with a letter or "*" only; most clients send a bare UUID.
_BARE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-][!#$%&'*+.^_`|~0-9A-Za-z:/-]*")


def parse_key(values: Sequence[bytes], limit: int = 255) -> str:
    """The key that the header's field lines carry: a structured-field string, or a bare token.

    ``"k"`` and ``k`` are the same key; parameters are ignored. `InvalidKey` for whatever else: no line that is there
    is ever taken for none.
    """
    if len(values) != 1:
        raise InvalidKey(f"the Idempotency-Key header is there {len(values)} times")
    raw = values[0].strip(b" \t")
    if len(raw) > 2 * limit + 64:  # longer than with every character escaped: no parser is needed to tell
        raise KeyTooLong(f"the Idempotency-Key header is over {limit} characters")
    if _BARE.fullmatch(raw):
        key = raw.decode("ascii")
    else:
        parse, error, token = _structured_fields()
        try:
            value = parse(raw, tltype="item")[0]
        except error as reason:
            raise InvalidKey(f"the Idempotency-Key header is no structured-field string: {show(reason)}") from reason
        if not isinstance(value, str | token):
            raise InvalidKey(f"the Idempotency-Key header is no string but a {type(value).__name__}")
        key = str(value)
    if not key:
        raise InvalidKey("the Idempotency-Key header is an empty string")
    if len(key) > limit:
        raise KeyTooLong(f"the Idempotency-Key has {len(key)} characters, more than the {limit} that are allowed")
    return key


@cache
def _structured_fields() -> tuple[Callable[..., Any], type[Exception], type]:
    try:
        import http_sf
    except ImportError as error:
        raise MissingDriver("HTTP needs http-sf: pip install 'effectonce[http]'") from error
    return http_sf.parse, http_sf.StructuredFieldError, http_sf.Token


def require_parser() -> None:
    """`MissingDriver` now, and not at the first quoted key."""
    _structured_fields()


# -- identity and fingerprint


def record_key(principal: Key, method: str, path: str, key: str) -> str:
    """The key of the record, for `Store.get`, `resolve` and `forget`: ``POST /charges 9f86d0…``.

    The SHA-256 is of the length-prefixed (principal, method, path, key), so that no two requests share a record that
    differ in any of these, and neither caller nor key can be read in a log. Method and path stand before it for people.
    """
    who = encode_key(principal)
    text = f"{len(who)}:{who}{len(method)}:{method}{len(path)}:{path}{len(key)}:{key}"
    if text.isascii():  # then a character is a byte
        raw = text.encode()
    else:  # a path may have been decoded from bytes that are no UTF-8
        parts = [part.encode("utf-8", "surrogatepass") for part in (who, method, path, key)]
        raw = b"".join([b"%d:%b" % (len(part), part) for part in parts])
    return f"{show(method, 16)} {show(path)} {hashlib.sha256(raw).hexdigest()}"


def fingerprint_state(method: str, path: bytes, query: bytes) -> hashlib._Hash:
    """The hash to update with the body; `fingerprint` ends it. Headers are left out: they change from try to try."""
    verb = method.encode("latin-1", "replace")
    return hashlib.sha256(b"%d:%b%d:%b%d:%b" % (len(verb), verb, len(path), path, len(query), query))


def fingerprint(state: hashlib._Hash) -> bytes:
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


def kept(headers: Iterable[tuple[str, str]], allowed: frozenset[str]) -> Headers:
    """The headers that are stored with a response."""
    return [(name, value) for name, value in headers if name.lower() in allowed]


def replay(stored: Response, retention: int) -> Response:
    """A stored response as it goes out again: marked, and with its length where a body may be."""
    headers = [*stored.headers, *published(retention), (REPLAYED, "true")]
    body = stored.body or b""
    if has_body(stored.status):
        headers.append(("content-length", str(len(body))))
    return Response(stored.status, headers, body)


def has_body(status: int) -> bool:
    """Whether a client expects a body, or its length, after the headers of a response to what we guard."""
    return status >= 200 and status not in (204, 304)


def published(retention: int) -> Headers:
    """The expiry policy, from the retention in microseconds."""
    return [(RETENTION, str(retention // 1_000_000))]


# -- problems

_SAME_KEY = "Send the same request again, with the same key."

_PROBLEMS: dict[type[EffectOnceError], tuple[int, str, str]] = {
    MissingKey: (
        400,
        "Idempotency-Key is missing",
        "This operation needs an Idempotency-Key header: a new UUID for each operation, the same for each retry of it.",
    ),
    InvalidKey: (
        400,
        "Idempotency-Key cannot be read",
        'Send one Idempotency-Key header with a short string in it: Idempotency-Key: "8e03978e-40d5-43e8-bc93".',
    ),
    MissingPrincipal: (
        401,
        "The caller is not known",
        "An Idempotency-Key belongs to its caller: authenticate, then send the request again with the same key.",
    ),
    InProgress: (409, "The request is being processed", f"Its response is not there yet. {_SAME_KEY}"),
    LeaseLost: (409, "The request is being processed", f"Another attempt at it has taken over. {_SAME_KEY}"),
    InDoubt: (
        409,
        "The outcome of the request is in doubt",
        "An earlier attempt ended without saying whether it took effect. It will not run again until that is found "
        "out: do not send it under a new key, ask the operator of this service.",
    ),
    ResultNotStored: (
        409,
        "The request was processed, its response was not kept",
        "It took effect once, and will not again. Its response was too large to be kept: look at the resource itself.",
    ),
    PermanentFailure: (
        409,
        "The request was given up",
        "It was ended for good and will not run under this key. A new attempt needs a new key.",
    ),
    PayloadTooLarge: (
        413,
        "The body is too large for an idempotent request",
        "Requests with an Idempotency-Key may have a body up to the limit of this operation only.",
    ),
    PayloadMismatch: (
        422,
        "Idempotency-Key was used before with another request",
        "A retry must be the same request, byte by byte; a new operation needs a new key.",
    ),
    EffectOnceError: (503, "The request could not be recorded", f"The service cannot say more now. {_SAME_KEY}"),
}
_PROBLEMS[AttemptsExhausted] = _PROBLEMS[PermanentFailure]
_PROBLEMS[Reentered] = _PROBLEMS[InProgress]

_json = msgspec.json.Encoder()


def status_of(error: EffectOnceError) -> int:
    """The status that ``error`` is answered with; 503 for all that is neither the client's nor the request's doing."""
    return _problem(type(error))[0]


def problem(error: EffectOnceError, docs: str = DRAFT) -> Response:
    """``error`` as problem+json. Its own text stays here: it may name what is not the client's to know."""
    status, title, detail = _problem(type(error))
    code = InProgress.code if isinstance(error, Reentered) else error.code
    body = {"type": f"{docs}#{code}", "title": title, "status": status, "detail": detail, "code": code}
    headers = [("content-type", "application/problem+json"), ("cache-control", "no-store")]
    headers.append(("link", f'<{docs}>; rel="describedby"'))
    if status == 503 or isinstance(error, InProgress | LeaseLost | Reentered):
        headers.append(("retry-after", str(_retry_after(error))))
    if isinstance(error, ResultNotStored):
        headers.append((REPLAYED, "true"))
    raw = _json.encode(body)
    headers.append(("content-length", str(len(raw))))
    return Response(status, headers, raw)


def _problem(kind: type[EffectOnceError]) -> tuple[int, str, str]:
    return next(_PROBLEMS[each] for each in kind.__mro__ if each in _PROBLEMS)


def _retry_after(error: EffectOnceError) -> int:
    """Whole seconds. Of what is in progress always one: when its lease ends says nothing about when its work does."""
    if isinstance(error, Retryable) and not isinstance(error, InProgress):
        return min(max(1, math.ceil(error.retry_after)), 60)
    return 1


def lost_attempt(docs: str = DRAFT) -> Response:
    """What is replayed of an attempt that raised, where the route says ``on_error="replay"``."""
    body = {
        "type": f"{docs}#attempt-failed",
        "title": "The request failed",
        "status": 500,
        "detail": "It ended with an error, and will not run again under this key.",
        "code": "attempt-failed",
    }
    return Response(500, [("content-type", "application/problem+json")], _json.encode(body))
