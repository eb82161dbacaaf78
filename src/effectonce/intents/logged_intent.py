"""The log of one intent: its request as it was frozen, how often it was sent, and when first.

The log is the note of the intent's record. It is committed before each send. So after a crash, the process that resumes
the intent knows that a request may have been sent.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from effectonce.errors import CorruptRecord


class LoggedIntent(Struct, array_like=True):
    """Everything that is recorded about one intent. Times are on the store's clock, in microseconds.

    Stored as an array: fields are only ever added at the end.
    """

    request: bytes  # JSON, as it was when the intent was first recorded
    key: str
    account: str
    step: str
    generation: int = 0  # the record's generation when the counts below began
    rounds: int = 0  # how often a reconciler proved that nothing had happened; each round has a new provider key
    first_sent_at: int = 0
    send_count: int = 0
    transactional: bool = False  # only its caller's transaction completes it, together with the caller's rows
    outcome: bytes | None = None  # of a transactional one: its result, found by a recovery or given by an operator
    doubted: bool = False  # of a transactional one: it waits for an operator's decision
    in_saga: bool = False  # a saga's step made it: the saga resumes it, or turns around and never does

    def forget_sends(self) -> None:
        """Count sends from 0 again. The provider key stays; another one needs a new generation or round."""
        self.first_sent_at = self.send_count = 0
        self.outcome = None


encode_log = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LoggedIntent).decode


def decode_log(stored: bytes | None) -> LoggedIntent:
    try:
        return _decode(stored or b"")
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"the log of an intent cannot be read: {error}; upgrade this process") from error
