"""A delivery in flight, and what is written on it when it becomes a dead letter."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from effectonce.contracts import Delivery
from effectonce.core.codec import STORED_NONE
from effectonce.core.guarded_call.run import Run
from effectonce.errors import EffectOnceError, show
from effectonce.message import Message

from .routes import HandlerRoute

CAUSE: Final = "eo-dead"
"""The header of a dead letter that says why it is one, as JSON."""

ATTEMPTS: Final = "eo-used-attempts"
"""The header of a redriven message that says how many attempts were counted before."""

MAX_CAUSE_CHARS: Final = 1000

HOST: Final = socket.gethostname()


class Job(Struct, eq=False, gc=False):
    """One delivery that can be handled, from its receipt to its settlement."""

    delivery: Delivery
    route: HandlerRoute
    message: Message[Any]
    key: str
    fingerprints: bytes
    lane: str  # only one job of a lane runs at a time: the ordering key, or its own key, which its duplicates share
    attempts_before_redrive: int = 0  # that the store had counted when it was redriven
    run: Run | None = None
    redriven: bool = False
    bypassing: bool = False  # redriven, and effects outside are to be skipped
    redelivered: bool = False  # it has been delivered before, or may have been
    untried: int = 0  # deliveries of it that were given back untried, as far as this process knows
    ended_before_claim: int = 0  # how many handlers of its pool had ended when it was claimed
    suspect: bool = False  # its last attempt never reported an outcome, so it runs alone
    started_at: float = 0.0  # mode T: when its handler was called; 0: it was not, since it is a duplicate
    stale: bool = False  # the broker has given it to another consumer
    result: bytes | None = STORED_NONE  # what its record keeps; None: nothing, since the store rejected it
    outgoing: list[Message[Any]] | None = None  # to be sent once its record is complete

    @property
    def attempt(self) -> int:
        """Which attempt this is since it was last redriven: by the store's count, else by the broker's, which begins
        anew with a redrive."""
        run = self.run
        if run is None or run.policy.seen_set:
            return self.broker_attempt
        return run.attempt - self.attempts_before_redrive

    @property
    def broker_attempt(self) -> int:
        """Which attempt this is by the broker's count of deliveries, less those that were given back untried."""
        return max(1, self.delivery.attempt - self.untried)


POISON_TEXT: Final = (
    "the last of {attempts} attempts never reported an outcome (its process probably crashed); fix the handler, then "
    "redrive the message"
)


class Poison(EffectOnceError):
    """Attempts at this message never reported an outcome, so often that the message probably ended their processes."""

    code = "poison"


class Cause(Struct, kw_only=True, omit_defaults=True):
    """Why, where and how often: what a dead letter carries beside its exact bytes.

    ``why`` is a stable code, of an error of ours or one of: unknown-type, poison (its attempts reported no outcome),
    refused (the error is one that `Retry` does not try again). Times are seconds since the epoch.
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
    first: float = 0.0  # when the first attempt was counted
    last: float = 0.0

    def brief(self) -> Cause:
        """The shortest cause that still says why."""
        return Cause(why=self.why, attempts=self.attempts)

    def header(self) -> dict[str, str]:
        # ASCII, since not every broker's headers can hold more.
        return {CAUSE: json.dumps(msgspec.to_builtins(self))}


def cause_of(error: BaseException, why: str = "", **where: Any) -> Cause:
    """Describe ``error`` as a cause; ``why`` overrides the code of the error."""
    code = why or (error.code if isinstance(error, EffectOnceError) else "raised")
    return Cause(
        why=code,
        text=show(error, MAX_CAUSE_CHARS),
        error=f"{type(error).__module__}:{type(error).__qualname__}",
        host=HOST,
        last=round(time.time(), 3),
        **where,
    )


_decoder = msgspec.json.Decoder(Cause)


def read_cause(headers: Mapping[str, str]) -> Cause | None:
    """The cause that a dead letter carries; None where another program has put it there."""
    try:
        return _decoder.decode(headers[CAUSE])
    except (KeyError, msgspec.DecodeError):
        return None
