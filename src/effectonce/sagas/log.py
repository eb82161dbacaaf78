"""The log of one saga: its input as it was frozen, and the progress of every step and every compensation.

The log is the note of the saga's record. Each end of a step is one commit; the last one rides with the settlement.
The structs are stored as arrays: a field is only ever added at the end, with a default. One that is removed or moved
would make the logs of running sagas unreadable.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct, field

from effectonce.core.codec import FORMAT_VERSION
from effectonce.core.error_text import describe_error
from effectonce.errors import CorruptRecord, show

StepState = Literal["pending", "running", "done", "failed", "timed_out"]


class StepProgress(Struct, array_like=True, gc=False):
    """The progress of a step, or of a compensation. Times are on the store's clock, in microseconds.

    Four fields say together whether it may have happened although no outcome is recorded:

        its last attempt              state     unknown_since    outcome_inferred   crashes
        (there was none)              pending   0                no                 0
        failed, and did not happen    failed    -                -                  -
        said that it is unknown       running   when it began    -                  -
        ended in a network error      running   when it began    yes                -
        took longer than its timeout  timed_out -                -                  -
        was interrupted               running   when it began    yes                + 1 if it ended itself (`sys.exit`)
        died with its process         running   -                -                  + 1

    (-: as it was.) While it is ``running``, or timed out, it is called again under the same key, until it has been
    unknown for a day or has crashed too often: then an operator decides. After an inferred outcome, a later error ends
    the step only if it proves that no attempt happened. Compensations do not start while a step is unknown.

    Stored as an array: add fields at the end only. Not tracked by the cycle collector, like `SagaLog`.
    """

    state: StepState = "pending"
    attempts: int = 0
    crashes: int = 0  # how often a process died in it, or it ended itself (`sys.exit`)
    rounds: int = 0  # how often an operator had it start over; part of its provider keys
    began: int = 0
    ended: int = 0
    error: str = ""
    unknown_since: int = 0  # since when it may have happened with an unknown outcome
    outcome_inferred: bool = False  # the outcome is unknown by inference (a network error), not by the step's own word

    def mark_unknown(self, *, inferred: bool = False) -> None:
        """Record that an attempt ended, and that it may have happened. ``inferred``: it did not say so itself."""
        self.state = "running"
        self.unknown_since = self.unknown_since or self.began
        self.outcome_inferred = self.outcome_inferred or inferred

    def mark_died(self) -> None:
        """Record that the process died in which it was running, or may have been."""
        self.state = "running"
        self.crashes += 1

    def start_over(self) -> None:
        self.state = "pending"
        self.attempts = self.crashes = self.unknown_since = 0
        self.outcome_inferred = False
        self.rounds += 1


class LoggedStep(Struct, array_like=True, gc=False):
    """One step of a saga. Stored as an array: add fields at the end only. Not tracked, like `SagaLog`."""

    name: str
    key: str  # the name that it started with. Its keys are made of that: a renamed step must not do its effect again
    undoable: bool  # whether it had a compensation when the saga started: removing that must be noticed
    do: StepProgress = field(default_factory=StepProgress)
    started_undo: StepProgress | None = None  # see `undo`
    result: bytes | None = None  # of a step that is done; None: it could not be stored

    @property
    def undo(self) -> StepProgress:
        """The progress of its compensation. Made on demand, since few sagas ever turn around."""
        if self.started_undo is None:
            self.started_undo = StepProgress()
        return self.started_undo


class SagaLog(Struct, array_like=True, gc=False):
    """Everything that is recorded about one saga. Stored as an array: add fields at the end only.

    The cycle collector does not track it, since it is a tree of values: no field may lead back to it.
    """

    id: str
    version: str
    input: bytes  # JSON
    entries: list[LoggedStep]
    phase: Literal["running", "compensating"] = "running"
    failed_at: str = ""  # the name of the step that failed; "" where an operator asked to compensate
    failure: str = ""  # the class of its error
    failure_text: str = ""  # its text, or what the operator decided
    step_in_doubt: str = ""  # its name. `migrations` renames the steps here, too, and in ``failed_at``
    doubt_reason: str = ""
    settled_attempt: int = 0  # the number of the attempt that last wrote the log and released its claim
    written_at: int = 0  # when the log was written; see `written_by_process_clock`
    trace: bytes = b""  # of the caller that recorded it, as `Tracer.current_context` returns it

    def mark_interrupted(self) -> None:
        """Record that the previous process died: the next step of a running saga may have happened."""
        if self.phase == "running":
            for entry in self.entries:
                if entry.do.state != "done":
                    entry.do.mark_died()
                    return

    @property
    def written_by_process_clock(self) -> bool:
        """Whether ``written_at`` is by the clock of the process that wrote the first log, since the store's clock was
        not known yet (F12: clocks that differ). It is stored as a negative time, which older releases read, too."""
        return self.written_at < 0

    def correct_written_at(self, claimed_at: int) -> None:
        """Replace a ``written_at`` by the process's clock with the earlier of it and ``claimed_at``, which is by the
        store's clock."""
        self.written_at = min(-self.written_at, claimed_at)

    @property
    def compensation_in_doubt(self) -> bool:
        """Whether the part in doubt is a compensation. It is if its step is done: the outcome of that is recorded, so
        the step itself cannot be in doubt."""
        return any(entry.name == self.step_in_doubt and entry.do.state == "done" for entry in self.entries)

    def find_part_in_doubt(self) -> tuple[LoggedStep, StepProgress]:
        """Return the step in doubt, and the progress of the step or of its compensation."""
        entry = next(entry for entry in self.entries if entry.name == self.step_in_doubt)
        return entry, entry.undo if self.compensation_in_doubt else entry.do

    def turn_around(self, failed_at: str, error: BaseException | None) -> None:
        """Compensate from now on: because of ``error``, or because an operator asked for it."""
        self.phase, self.failed_at = "compensating", failed_at
        self.failure = f"{type(error).__module__}:{type(error).__qualname__}" if error is not None else ""
        self.failure_text = describe_error(error) if error is not None else "an operator asked for it"

    def collect_results(self) -> dict[str, bytes]:
        """Collect the stored results of the steps that are done, by name."""
        return {
            entry.name: entry.result for entry in self.entries if entry.do.state == "done" and entry.result is not None
        }

    def describe_doubt(self, saga: str) -> str:
        """Describe to an operator which part is in doubt, and the command that decides it."""
        part = f"{'the compensation of ' if self.compensation_in_doubt else ''}step {self.step_in_doubt}"
        return (
            f"saga {show(saga)} {show(self.id)!r} is in doubt at {part}: {self.doubt_reason}; find out whether it "
            f"happened, then decide: effectonce sagas resolve MODULE:SAGA {shlex.quote(show(self.id, 500))}"
        )


encode_log = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SagaLog).decode
_to_json = msgspec.json.Encoder().encode


def decode_log(stored: bytes | None) -> SagaLog:
    try:
        return _decode(stored or b"")
    except ValueError as error:
        raise CorruptRecord(f"the log of a saga cannot be read: {error}; upgrade this process") from error


def pack_results(results: Mapping[str, bytes]) -> bytes:
    """Pack the results of all steps into the one result of the record."""
    return FORMAT_VERSION + _to_json({name: msgspec.Raw(stored[1:]) for name, stored in results.items()})


def unpack_results(value: Mapping[str, msgspec.Raw]) -> dict[str, bytes]:
    return {name: FORMAT_VERSION + bytes(raw) for name, raw in value.items()}
