"""The format of records in Redis: the names of keys, the packed items that scripts take, the replies that they give.

``common.lua`` and ``records.lua`` document the same format from the scripts' side.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from effectonce.errors import CorruptRecord, InvalidOption
from effectonce.keys import digest
from effectonce.record import (
    EXHAUSTED,
    Answer,
    AnswerKind,
    Claim,
    Look,
    Record,
    Remember,
    Renewal,
    Resolution,
    Settlement,
    State,
)

#: The format of the records, which the meta hash of the namespace names too.
FORMAT_VERSION: Final = 1

_NAMESPACE = re.compile(r"[A-Za-z0-9_.\-]{1,64}", re.ASCII)


class Layout:
    """The names of a namespace's keys. Records are spread over 256 buckets by the first byte of their digest; a bucket
    is a hash tag, so that a record and its indexes are on one node of a cluster."""

    def __init__(self, namespace: str) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise InvalidOption(f"namespace={namespace!r} may hold letters, digits, '_', '.' and '-', at most 64")
        self.buckets = [f"eo:{{{namespace}/{n:02x}}}:".encode() for n in range(256)]
        self.meta = f"eo:{{{namespace}}}:meta".encode()
        self.pattern = f"eo:{{{namespace}/??}}:*"
        self.channel = f"eo:{namespace}:changes"
        #: Cached for the settlement, which soon asks for the key of its claim again: hashing takes 0.8 of the 3 µs that
        #: we need for one operation.
        self.key: Callable[[str, str], bytes] = lru_cache(maxsize=1024)(self._key)

    def _key(self, scope: str, key: str) -> bytes:
        identity = digest(scope, key)
        return self.buckets[identity[0]] + identity

    def indexes(self) -> list[bytes]:
        return [bucket + b"open" for bucket in self.buckets]


def companions(key: bytes) -> tuple[bytes, ...]:
    """The indexes that a script may touch beside ``key``."""
    bucket, separator, name = key.partition(b"}:")
    if name == b"meta":
        return ()
    return (bucket + separator + b"open", bucket + separator + b"doubt")


# An item: the operation, its flags, the length of the owner, three numbers, the lengths of four texts; then the owner
# and the texts. The numbers and texts that an operation needs are documented at its function in records.lua.

_pack_head = struct.Struct("<BBBdddIIII").pack
_STATE_NUMBERS = {"done": 1, "failed": 2, "in_doubt": 3, "free": 4}


def _pack_claim(op: Claim) -> bytes:
    scope, key, owner, prints = op.scope.encode(), op.key.encode(), op.owner, op.fingerprints
    flags = op.doubt_on_lapse + 2 * op.waiting
    lengths = len(scope), len(key), len(prints), 0
    head = _pack_head(1, flags, len(owner), op.lease, op.retention, op.max_attempts, *lengths)
    return head + owner + scope + key + prints


def _pack_look(op: Look) -> bytes:
    return _pack_head(4, 0, 0, 0, 0, 0, 0, 0, len(op.fingerprints), 0) + op.fingerprints


def _pack_settlement(op: Settlement) -> bytes:
    result, error, owner = op.result, op.error, op.owner
    flags = op.refund + 2 * (result is not None) + 4 * (error is not None)
    result, error = result or b"", error or b""
    state = _STATE_NUMBERS[op.state]
    head = _pack_head(2, flags, len(owner), op.token, op.retention, state, 0, 0, len(result), len(error))
    return head + owner + result + error


def _pack_renewal(op: Renewal) -> bytes:
    return _pack_head(3, 0, len(op.owner), op.token, op.lease, op.retention, 0, 0, 0, 0) + op.owner


def _pack_remember(op: Remember) -> bytes:
    scope, key, result, prints = op.scope.encode(), op.key.encode(), op.result or b"", op.fingerprints
    lengths = len(scope), len(key), len(result), len(prints)
    return _pack_head(5, 2 * (op.result is not None), 0, 0, op.retention, 0, *lengths) + scope + key + result + prints


def pack_forget(retention: int) -> bytes:
    return _pack_head(6, 0, 0, 0, retention, 0, 0, 0, 0, 0)


def pack_resolution(resolution: Resolution) -> bytes:
    flags = 2 * (resolution.result is not None) + 4 * (resolution.error is not None)
    result, error = resolution.result or b"", resolution.error or b""
    return (
        _pack_head(
            7, flags, 0, 0, resolution.retention, _STATE_NUMBERS[resolution.state], 0, 0, len(result), len(error)
        )
        + result
        + error
    )


def pack_get(letter: str = "", scope: str = "") -> bytes:
    """Read a record; only if it is in the state of ``letter`` and in ``scope``, where these are given."""
    body, note = letter.encode(), scope.encode()
    return _pack_head(8, 0, 0, 0, 0, 0, 0, 0, len(body), len(note)) + body + note


PACK: Final[dict[type, Callable[[Any], bytes]]] = {
    Claim: _pack_claim,
    Look: _pack_look,
    Settlement: _pack_settlement,
    Renewal: _pack_renewal,
    Remember: _pack_remember,
}


# Replies

_KINDS: dict[bytes, AnswerKind] = {
    b"absent": "absent",
    b"mismatch": "mismatch",
    b"in_doubt": "in_doubt",
}
STATE_LETTERS: Final[dict[State, str]] = {"claimed": "C", "done": "D", "failed": "F", "in_doubt": "I", "free": "R"}
_STATES: dict[bytes, State] = {letter.encode(): state for state, letter in STATE_LETTERS.items()}
_unpack_header = struct.Struct("<cBdddd3s3s").unpack_from  # after it the end of a claim's lease, then the owner
_HEADER_SIZE = 40


def parse_answer(item: list[Any]) -> Answer:
    """The answer to a claim or a look. (A claim of a new record is answered by its token alone.)"""
    kind, token, attempts, generation, extra = item
    if kind == b"claimed":
        return Answer("claimed", token, attempts, generation, None, None, 0.0, extra == 1)
    if kind == b"done":
        return Answer("done", token, attempts, generation, extra)
    if kind == b"in_progress":
        return Answer("in_progress", token, attempts, generation, None, None, extra / 1e6)
    if kind == b"failed":
        return Answer("exhausted" if extra == EXHAUSTED else "failed", token, attempts, generation, None, extra)
    return Answer(_KINDS[kind], token, attempts, generation)


def parse_record(name: bytes, fields: list[bytes]) -> Record:
    """The record in a hash; `CorruptRecord` where it is not one that effectonce wrote."""
    by_name = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        header = by_name[b"h"]
        state, flags, token, changed, created, expires, attempts, generation = _unpack_header(header)
        is_claimed = state == b"C"
        lease_until = struct.unpack_from("<d", header, _HEADER_SIZE)[0] if is_claimed else 0
        return Record(
            scope=by_name[b"S"].decode(),
            key=by_name[b"K"].decode(),
            state=_STATES[state],
            token=int(token),
            attempts=int.from_bytes(attempts, "little"),
            generation=int.from_bytes(generation, "little"),
            doubt_on_lapse=flags % 2 == 1,
            created_at=int(created),
            changed_at=int(changed),
            lease_until=int(lease_until) if lease_until else None,
            expires_at=int(expires) if expires else None,
            owner=header[_HEADER_SIZE + (8 if is_claimed else 0) :],
            fingerprint=by_name.get(b"p"),
            result=by_name.get(b"r"),
            error=by_name.get(b"e"),
        )
    except (KeyError, ValueError, struct.error) as error:
        raise CorruptRecord(f"{name!r} cannot be read: {error!r}; look at it with HGETALL, then DEL it") from error


def identity_of(message: bytes) -> tuple[str, str]:
    """The (scope, key) in a message on the channel of changes."""
    length, _, rest = message.partition(b":")
    return rest[: int(length)].decode(), rest[int(length) :].decode()


def parse_cursor(cursor: str, kind: str) -> tuple[str, str, bytes]:
    """The (bucket or node, cursor of SCAN, last name shown) in a page's cursor. `InvalidOption` for another list's."""
    try:
        cursor_kind, scan, after, place = cursor.split("|")
        if cursor_kind != kind or not scan.isdigit():
            raise ValueError
        return place, scan, bytes.fromhex(after)
    except ValueError:
        raise InvalidOption("this cursor was not made by this query; start again without one") from None
