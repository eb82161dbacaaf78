"""The log of one intent: its request as it was frozen, how often it was sent, and when first.

The log is the note of the intent's record. It is committed before each send, so that the process that resumes the
intent after a crash knows that something may have been sent.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from effectonce.errors import CorruptRecord
from effectonce.values.provider_keys import provider_key


class LoggedIntent(Struct, array_like=True):
    """Everything that is recorded about one intent. Times are on the store's clock, in microseconds.

    Stored as an array: fields are only ever added at the end.
    """

    request: bytes  # JSON, as it was when the intent was first recorded
    key: str
    account: str
    step: str
    generation: int = 0  # the record's generation when the counts below began
    rounds: int = 0  # how often it was proven that nothing had happened, and it started over
    first_sent_at: int = 0
    send_count: int = 0
    transactional: bool = False  # only its caller's transaction completes it, together with the caller's rows
    outcome: bytes | None = None  # of a transactional one: its result, found by a recovery or given by an operator
    doubted: bool = False  # of a transactional one: it waits for an operator's decision
    in_saga: bool = False  # a saga's step made it: the saga resumes it, or turns around and never does

    def start_over(self) -> None:
        self.first_sent_at = self.send_count = 0
        self.outcome = None


encode_log = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LoggedIntent).decode


def decode_log(stored: bytes | None) -> LoggedIntent:
    try:
        return _decode(stored or b"")
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"the log of an intent cannot be read: {error}; upgrade this process") from error


class ResendRules(Struct, frozen=True, kw_only=True):
    """The conditions under which an operation may be sent again."""

    provider: str
    operation: str
    scope: str
    keyed: bool
    window: int  # how long the provider keeps a key
    margin: int
    repeats: bool  # for a provider without keys: send again, at the risk of a second effect

    def intent_id(self, key: str, account: str, step: str) -> str:
        """Return the id of an intent."""
        return provider_key(self.provider, account, self.scope, self.operation, key, step)

    def provider_key(self, log: LoggedIntent) -> str:
        """Return the key that is sent to the provider. Another generation has another key."""
        generation = f"{log.generation}.{log.rounds}" if log.rounds else str(log.generation)
        return provider_key(self.provider, log.account, self.scope, self.operation, log.key, log.step, generation)

    def decide_next(self, log: LoggedIntent, now: int) -> Literal["send", "reconcile"]:
        """Decide whether to send, or to find out first because it was sent before and a resend is not safe."""
        if not log.send_count or (self.repeats and not self.keyed):
            return "send"
        key_is_kept = self.keyed and now < log.first_sent_at + self.window - self.margin
        return "send" if key_is_kept else "reconcile"
