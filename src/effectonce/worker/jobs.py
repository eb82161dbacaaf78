"""A delivery in hand, and what is written on it when it is given up."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from effectonce.contracts import Delivery
from effectonce.core.codec import NOTHING
from effectonce.core.guarded_call.run import Run
from effectonce.errors import EffectOnceError, show
from effectonce.message import BYPASS, REDRIVEN, Message

from .routes import Route

CAUSE: Final = "eo-dead"
"""The header of a dead letter that says why it is one, as JSON."""

ATTEMPTS: Final = "eo-used-attempts"
"""The header of a redriven message that says how many attempts were counted before."""

MAX_TEXT: Final = 1000

HOST: Final = socket.gethostname()


class Job(Struct, eq=False, gc=False):
    """One delivery that can be handled, from its intake to its settlement."""

    delivery: Delivery
    route: Route
    message: Message[Any]
    key: str
    fingerprints: bytes
    lane: str  # of one lane only one is started: its ordering key, or its own key, which its duplicates share
    used: int = 0  # attempts that the store had counted when it was redriven
    run: Run | None = None
    again: bool = False  # it has been delivered before, or may have been
    spared: int = 0  # deliveries of it that were no attempts, as far as this process knows
    suspect: bool = False  # its last attempt ended without a word, so it runs alone
    began: float = 0.0  # mode T: when its handler was called; 0: it was not, since it is a duplicate
    stale: bool = False  # the broker has given it to another consumer
    result: bytes = NOTHING  # what its record keeps
    outgoing: list[Message[Any]] | None = None  # what is sent on when it is recorded

    @property
    def attempt(self) -> int:
        """Which attempt this is since it was last redriven: by the store's count, else by the broker's, which begins
        anew with a redrive."""
        run = self.run
        return run.attempt - self.used if run is not None and not run.policy.seen else self.tries

    @property
    def tries(self) -> int:
        """Which attempt this is by the broker's count, which knows deliveries only: those that had to wait for another
        one are none."""
        return max(1, self.delivery.attempt - self.spared)


class Poison(EffectOnceError):
    """Attempts at this message ended without a word, so often that it may well be what ended their processes."""

    code = "poison"


def mark(job: Job, run: Run) -> None:
    """Tell the handler, by `current()`, what a redrive has written on the message: ours, or one that its envelope
    knows."""
    said = job.delivery.packet.headers.get(REDRIVEN) or job.message.headers.get(REDRIVEN)
    if said is not None:
        run.redriven, run.bypassing = True, said.startswith(BYPASS)


class Cause(Struct, kw_only=True, omit_defaults=True):
    """Why, where and how often: what a dead letter carries beside its exact bytes.

    ``why`` is a stable code, of an error of ours or one of: unknown-type, poison (its attempts ended without a word),
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
        """The least of it that says why."""
        return Cause(why=self.why, attempts=self.attempts)

    def header(self) -> dict[str, str]:
        # ASCII, since not every broker's headers can hold more.
        text = msgspec.json.encode(self).decode()
        return {CAUSE: text if text.isascii() else _ascii(text)}


def cause_of(error: BaseException, why: str = "", **where: Any) -> Cause:
    """The cause that ``error`` is; ``why`` where its own code does not say it."""
    code = why or (error.code if isinstance(error, EffectOnceError) else "raised")
    return Cause(
        why=code,
        text=show(error, MAX_TEXT),
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


def _ascii(text: str) -> str:
    """JSON with every other character escaped; those beyond 16 bits as two halves, as JSON wants them."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)
