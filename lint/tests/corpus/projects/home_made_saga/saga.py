# ruff: noqa
from dataclasses import dataclass
from typing import Callable


@dataclass
class Step:
    name: str
    action: Callable
    compensation: Callable


class Saga:
    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(self, name, action, compensation):
        self.steps.append(Step(name, action, compensation))
        return self

    def run(self, ctx):
        done = []
        try:
            for step in self.steps:
                step.action(ctx)
                done.append(step)
        except Exception:
            for step in reversed(done):
                step.compensation(ctx)
            raise
