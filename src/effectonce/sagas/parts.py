"""`SagaPart`: one thing that a saga calls, which is a step or the compensation of one."""

from __future__ import annotations

from msgspec import Struct

from .log import LoggedStep, StepProgress
from .steps import StepFunction


class SagaPart(Struct, frozen=True, eq=False):
    """A step, or (``undoes``) the compensation of one, with its progress in the log and the function to call."""

    entry: LoggedStep
    function: StepFunction
    undoes: bool

    @property
    def name(self) -> str:
        """The name of the step."""
        return self.entry.name

    @property
    def progress(self) -> StepProgress:
        return self.entry.undo if self.undoes else self.entry.do
