"""How the steps and compensations of a saga are shown."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from effectonce.errors import show
from effectonce.record import Record
from effectonce.sagas.log import LoggedStep, SagaLog, StepProgress

from .formatting import format_state

#: The tone of a step, by its state.
TONES: Final = {"done": "done", "failed": "failed", "timed_out": "failed", "running": "claimed", "in_doubt": "in_doubt"}

ENDED_STATES: Final = frozenset({"done", "failed", "timed_out"})


class SagaPartView(Struct, frozen=True):
    """A step of a saga, or (``undoes``) its compensation, as it is shown."""

    step: LoggedStep
    progress: StepProgress
    undoes: bool
    state: str  # the progress's state, or in_doubt

    @property
    def title(self) -> str:
        return f"undo {self.step.name}" if self.undoes else self.step.name

    @property
    def state_word(self) -> str:
        return self.state.replace("_", " ")

    @property
    def tone(self) -> str:
        return TONES.get(self.state, "free")

    @property
    def outcome(self) -> str:
        """The error, or the result of a step that is done, on one line."""
        if self.progress.error or self.undoes or self.step.result is None:
            return show(self.progress.error, 200)
        return show(self.step.result[1:].decode("utf-8", "replace"), 200)


def make_saga_part_view(log: SagaLog, record_state: str, step: LoggedStep, *, undoes: bool) -> SagaPartView:
    """Make a step, or its compensation, with the state that is shown for it."""
    progress = step.undo if undoes else step.do
    in_doubt = record_state == "in_doubt" and progress is log.find_part_in_doubt()[1]
    return SagaPartView(step, progress, undoes, "in_doubt" if in_doubt else progress.state)


def list_saga_part_views(log: SagaLog, record_state: str) -> list[SagaPartView]:
    """Return the steps, then the compensations that have begun, in the order in which they run."""
    undone = [step for step in reversed(log.entries) if step.undo.attempts or step.undo.rounds]
    return [
        *(make_saga_part_view(log, record_state, step, undoes=False) for step in log.entries),
        *(make_saga_part_view(log, record_state, step, undoes=True) for step in undone),
    ]


def format_saga_state(record: Record, now: int) -> str:
    """Return the word for a saga's state. Between two steps its record is free, and the saga is waiting."""
    return "waiting" if record.state == "free" else format_state(record, now)
