"""The format of records in Redis: the names of keys, the packed operations for the scripts, and their replies.

``common.lua`` and ``records.lua`` have the same format on the scripts' side: change both together.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta

from effectonce.errors import CorruptRecord, InvalidOption
from effectonce.keys import digest
from effectonce.record import (
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
    is_exhausted,
)

#: The format of the records, which the meta hash of the namespace names too.
FORMAT_VERSION: Final = 1

log = logging.getLogger("effectonce")

_NAMESPACE = re.compile(r"[A-Za-z0-9_.\-]{1,64}", re.ASCII)


class Layout:
    """The names of a namespace's keys. Records are spread over 256 buckets by the first byte of their digest. A
    bucket's name is a hash tag, so that its records and its indexes are on one node of a cluster."""

    def __init__(self, namespace: str) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise InvalidOption(f"namespace={namespace!r} may hold letters, digits, '_', '.' and '-', at most 64")
        self.buckets = [f"eo:{{{namespace}/{n:02x}}}:".encode() for n in range(256)]
        self.meta = f"eo:{{{namespace}}}:meta".encode()
        self.pattern = f"eo:{{{namespace}/??}}:*"
        self.channel = f"eo:{namespace}:changes"
        #: The key of a record. Cached, since a settlement soon needs the key of its claim again, and hashing takes 0.8
        #: of the 3 µs that an operation costs us.
        self.key: Callable[[str, str], bytes] = lru_cache(maxsize=1024)(self._key)

    def _key(self, scope: str, key: str) -> bytes:
        identity = digest(scope, key)
        return self.buckets[identity[0]] + identity

    def indexes(self) -> list[bytes]:
        return [bucket + b"open" for bucket in self.buckets]


def index_keys(key: bytes) -> tuple[bytes, ...]:
    """The indexes of the bucket of ``key``, which a script may change together with it."""
    bucket, separator, name = key.partition(b"}:")
    if name == b"meta":
        return ()
    return (bucket + separator + b"open", bucket + separator + b"doubt")


# A packed operation: its number, its flags, the length of the owner, three numbers, the lengths of four texts; then the
# owner and the texts. What the numbers and texts are is documented at the operation's function in records.lua.

_CLAIM, _SETTLE, _RENEW, _LOOK, _REMEMBER, _FORGET, _RESOLVE, _GET = range(1, 9)  # as records.lua numbers them
_HAS_RESULT, _HAS_ERROR = 2, 4  # flags of settle, remember and resolve
_pack_head = struct.Struct("<BBBdddIIII").pack
_STATE_NUMBERS = {"done": 1, "failed": 2, "in_doubt": 3, "free": 4}


def _pack_claim(op: Claim) -> bytes:
    scope, key, owner, prints = op.scope.encode(), op.key.encode(), op.owner, op.fingerprints
    flags = op.doubt_on_lapse + 2 * op.waiting
    lease, retention, limit = op.lease_us, op.retention_us, op.max_attempts
    head = _pack_head(_CLAIM, flags, len(owner), lease, retention, limit, len(scope), len(key), len(prints), 0)
    return b"".join((head, owner, scope, key, prints))


def _pack_look(op: Look) -> bytes:
    return _pack_head(_LOOK, 0, 0, 0, 0, 0, 0, 0, len(op.fingerprints), 0) + op.fingerprints


def _pack_settlement(op: Settlement) -> bytes:
    result, error, owner = op.result, op.error, op.owner
    flags = op.refund + _HAS_RESULT * (result is not None) + _HAS_ERROR * (error is not None)
    result, error = result or b"", error or b""
    state = _STATE_NUMBERS[op.state]
    head = _pack_head(_SETTLE, flags, len(owner), op.token, op.retention_us, state, 0, 0, len(result), len(error))
    return b"".join((head, owner, result, error))


def _pack_renewal(op: Renewal) -> bytes:
    return _pack_head(_RENEW, 0, len(op.owner), op.token, op.lease_us, op.retention_us, 0, 0, 0, 0) + op.owner


def _pack_remember(op: Remember) -> bytes:
    scope, key, result, prints = op.scope.encode(), op.key.encode(), op.result or b"", op.fingerprints
    flags, lengths = _HAS_RESULT * (op.result is not None), (len(scope), len(key), len(result), len(prints))
    return _pack_head(_REMEMBER, flags, 0, 0, op.retention_us, 0, *lengths) + scope + key + result + prints


def pack_forget(retention: int) -> bytes:
    return _pack_head(_FORGET, 0, 0, 0, retention, 0, 0, 0, 0, 0)


def pack_resolution(resolution: Resolution) -> bytes:
    flags = _HAS_RESULT * (resolution.result is not None) + _HAS_ERROR * (resolution.error is not None)
    result, error = resolution.result or b"", resolution.error or b""
    numbers = (0, resolution.retention_us, _STATE_NUMBERS[resolution.state])
    return _pack_head(_RESOLVE, flags, 0, *numbers, 0, 0, len(result), len(error)) + result + error


def pack_get(letter: str = "", scope: str = "") -> bytes:
    """Pack the reading of a record. ``letter`` and ``scope``, where given, are the state and the scope that it must
    have."""
    state, wanted_scope = letter.encode(), scope.encode()
    return _pack_head(_GET, 0, 0, 0, 0, 0, 0, 0, len(state), len(wanted_scope)) + state + wanted_scope


PACKERS: Final[dict[type, Callable[[Any], bytes]]] = {
    Claim: _pack_claim,
    Look: _pack_look,
    Settlement: _pack_settlement,
    Renewal: _pack_renewal,
    Remember: _pack_remember,
}


# -- replies

_KINDS: dict[bytes, AnswerKind] = {b"absent": "absent", b"mismatch": "mismatch", b"in_doubt": "in_doubt"}
STATE_LETTERS: Final[dict[State, str]] = {"claimed": "C", "done": "D", "failed": "F", "in_doubt": "I", "free": "R"}
_STATES: dict[bytes, State] = {letter.encode(): state for state, letter in STATE_LETTERS.items()}
#: The fields of a header, as common.lua lists them. Behind it: the end of a claim's lease, then the owner.
_HEADER = struct.Struct("<cBdddd3s3s")


def parse_answer(item: list[Any]) -> Answer:
    """Parse the answer to a claim or a look. (A claim of a new record is answered by its token alone.)"""
    kind, token, attempts, generation, extra, *last_error = item
    if kind == b"claimed":
        return Answer("claimed", token, attempts, generation, error=last_error[0], lapsed=extra == 1)
    if kind == b"done":
        return Answer("done", token, attempts, generation, result=extra)
    if kind == b"in_progress":
        return Answer("in_progress", token, attempts, generation, retry_after=extra / 1e6)
    if kind == b"failed":
        failed: AnswerKind = "exhausted" if is_exhausted(extra) else "failed"
        return Answer(failed, token, attempts, generation, error=extra)
    return Answer(_KINDS[kind], token, attempts, generation)


def parse_record(name: bytes, fields: list[bytes]) -> Record:
    """Parse the record in a hash. `CorruptRecord` where effectonce did not write it."""
    by_name = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        header = by_name[b"h"]
        state, flags, token, changed, created, expires, attempts, generation = _HEADER.unpack_from(header)
        is_claimed = state == b"C"
        lease_until = struct.unpack_from("<d", header, _HEADER.size)[0] if is_claimed else 0
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
            owner=header[_HEADER.size + (8 if is_claimed else 0) :],
            fingerprint=by_name.get(b"p"),
            result=by_name.get(b"r"),
            error=by_name.get(b"e"),
        )
    except (KeyError, ValueError, struct.error) as error:
        raise CorruptRecord(f"{name!r} cannot be read: {error!r}; look at it with HGETALL, then DEL it") from error


def parse_if_intact(name: bytes, fields: list[bytes]) -> list[Record]:
    """The record in a list; [] with a line in the log if it is damaged."""
    try:
        return [parse_record(name, fields)]
    except CorruptRecord as error:
        log_skipped(error)
        return []


def log_skipped(error: Exception) -> None:
    """Log a damaged record that a list leaves out. `RedisPort.get` raises for such a record."""
    log.warning("a damaged record is left out of the list: %s", error)


def parse_change(message: bytes) -> tuple[str, str]:
    """Parse the (scope, key) in a message on the channel of changes."""
    length, _, rest = message.partition(b":")
    return rest[: int(length)].decode(), rest[int(length) :].decode()


# -- the cursors of a list

#: A list reads the index of what is in doubt, or scans all keys.
ListKind = Literal["index", "scan"]

ScanCursor = Annotated[str, Meta(pattern=r"\A[0-9]+\Z")]  # 64 bits, unsigned


class ListPosition(NamedTuple):
    """How far a list was read."""

    place: str  # the number of a bucket, or the name of a node
    scan: ScanCursor  # the cursor of SCAN or ZSCAN there
    after: bytes  # the last key that was shown of this step; b"": none
