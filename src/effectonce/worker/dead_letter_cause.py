"""Why a message became a dead letter: the cause that is written on it, in a header."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from effectonce.core.error_text import error_class, error_text
from effectonce.core.failure_log import traceback_tail
from effectonce.message import CAUSE_HEADER

MAX_CAUSE_CHARS: Final = 1000

HOST_NAME: Final = socket.gethostname()

CauseCode = Literal[
    "undecodable",  # the body is not a message, or the key cannot be taken from it
    "forged-message",  # its signature is missing or wrong
    "unknown-type",  # no handler of the queue takes its type
    "missing-key",  # it has no key
    "invalid-key",  # no store can keep its key
    "key-too-long",
    "payload-mismatch",  # its key was used before with another payload
    "permanent-failure",  # its handler raised an error of ``permanent=``, or one that is recorded for good
    "refused",  # its handler raised an error that its `Retry` does not try again
    "attempts-exhausted",  # every allowed attempt failed
    "in-doubt",  # an attempt ended without saying whether its effect happened
    "poison",  # its attempts reported no outcome: it probably ends its processes
    "unsent",  # it is done, but what it returned (``to=``) could not be sent
]
"""Why a worker gives a message up. The codes are stable: operators filter by them."""


class Cause(Struct, kw_only=True, omit_defaults=True, rename={"first_attempt_at": "first", "given_up_at": "last"}):
    """Why, where and how often: what a dead letter carries beside its exact bytes.

    ``why`` is a `CauseCode`, or what another program wrote. Times are seconds since the epoch.
    """

    why: str
    text: str = ""
    error: str = ""  # the class of what was raised
    attempts: int = 0
    worker: str = ""
    host: str = ""
    queue: str = ""
    handler: str = ""
    scope: str = ""
    key: str = ""
    traceback: str = ""  # its last frames
    first_attempt_at: float = 0.0  # when it was counted; where that is not known, ``given_up_at``
    given_up_at: float = 0.0

    def shorten(self) -> Iterator[Cause]:
        """This cause, then shorter ones for brokers whose headers have no room for it. The last only says why."""
        yield self
        yield replace(self, traceback="")
        yield Cause(why=self.why, attempts=self.attempts)

    def header(self) -> dict[str, str]:
        # ASCII, since not every broker's headers can hold more.
        return {CAUSE_HEADER: json.dumps(msgspec.to_builtins(self))}


def cause_of(error: BaseException, why: CauseCode, attempts: int, *, private: bool = False) -> Cause:
    """Describe ``error``, after which a message is given up, as a cause. ``private``: its traceback has only files,
    lines and functions."""
    return Cause(
        why=why,
        text=error_text(error, MAX_CAUSE_CHARS),
        error=error_class(error),
        attempts=attempts,
        traceback=traceback_tail(error, frames_only=private),
        host=HOST_NAME,
        given_up_at=round(time.time(), 3),
    )


_decoder = msgspec.json.Decoder(Cause)


def read_cause(headers: Mapping[str, str]) -> Cause | None:
    """Read the cause of a dead letter. None: it has no cause of ours, since another program moved it there."""
    try:
        return _decoder.decode(headers[CAUSE_HEADER])
    except (KeyError, msgspec.DecodeError):
        return None
