"""The identity of an operation as stores write it: its key as text, and scope and key as a digest of 32 bytes."""

from __future__ import annotations

import hashlib
from typing import Final
from uuid import UUID

from effectonce.errors import InvalidKey, KeyTooLong, MissingKey, show

Key = str | int | UUID | tuple[str | int | UUID, ...]

MAX_KEY: Final = 1024
"""Longest key, in bytes of UTF-8: every store can index it, and a page of them fits in memory."""


class WindowStart(str):
    """The start of a time window, as the last part of a key. Its colons are not escaped: all windows of one key are
    written in one length, so that the parts before it can be told apart all the same."""

    __slots__ = ()


def encode_key(value: object, *, limit: int = MAX_KEY) -> str:
    """The key as stores keep it: a str as is, an int in decimal, a UUID with dashes, a tuple joined by ":".

    Two different tuples of strings are never written alike: ``\\`` and ``:`` inside a part are escaped, but for those
    of a `WindowStart`. Types
    are not kept apart (``7`` and ``"7"``, ``("a", "b")`` and ``"a:b"`` are one key). Unicode is not
    normalised: a composed and a decomposed ``é`` are two keys.

    Raises `MissingKey` for ``None``, ``""`` and ``()``, alone or as a part; `KeyTooLong` over ``limit`` bytes
    of UTF-8; `InvalidKey` for any other type (bool included), NUL and lone surrogates.
    """
    if isinstance(value, tuple):
        text = ":".join(_encode_part(part, limit) for part in value)
    else:
        text = value if type(value) is str else _text(value, limit)
    if not text:
        raise MissingKey("the key is empty; the sender must give one")
    if len(text) > limit:  # UTF-8 is never shorter, so a huge key need not be encoded
        raise _too_long(f"{len(text):,} characters, {show(text, 48)}", limit)
    if "\0" in text:
        raise InvalidKey(f"a key cannot contain NUL, PostgreSQL cannot store it: {show(text, 48)}")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"a key must be valid Unicode, without lone surrogates: {show(text, 48)}") from None
    if size > limit:
        raise _too_long(f"{size:,} bytes, {show(text, 48)}", limit)
    return text


def _encode_part(value: object, limit: int) -> str:
    text = _text(value, limit)
    if not text:
        raise MissingKey("a part of the key is empty; operations that lack it would all share one key")
    if ("\\" in text or ":" in text) and not isinstance(value, WindowStart):
        return text.replace("\\", "\\\\").replace(":", "\\:")
    return text


def _text(value: object, limit: int) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and value is not True and value is not False:
        if value.bit_length() > 4 * limit:  # checked first: a decimal conversion would take quadratic time
            raise _too_long(f"an integer of {value.bit_length():,} bits", limit)
        return int.__repr__(value)
    if isinstance(value, UUID):
        return str(value)
    if value is None:
        raise MissingKey("the key, or a part of it, is None; the sender must give one")
    raise InvalidKey(
        f"a key cannot be made of {type(value).__qualname__}; give a str, int, UUID or a tuple of these "
        "(decode bytes first, write numbers and dates as text)"
    )


def _too_long(what: str, limit: int) -> KeyTooLong:
    return KeyTooLong(
        f"the key is over the cap of {limit:,} bytes ({what}); key on an id, or on content_hash(...) of the long part"
    )


def digest(scope: str, key: str) -> bytes:
    """The identity in 32 bytes: SHA-256 of scope and key, each after its length as four big-endian bytes.

    No two (scope, key) pairs share the hashed text, and no collation or case folding can merge two digests.
    """
    try:
        scope_bytes, key_bytes = scope.encode(), key.encode()
    except UnicodeEncodeError:
        raise InvalidKey("a scope and a key must be valid Unicode, without lone surrogates") from None
    scope_length, key_length = len(scope_bytes).to_bytes(4, "big"), len(key_bytes).to_bytes(4, "big")
    return hashlib.sha256(b"".join((scope_length, scope_bytes, key_length, key_bytes))).digest()
