"""The recipe for durable functions, on a stand-in of their replay rule: it shows when a step reaches our guard.

Their SDK is not installed here. The stand-in has what the recipe uses: a step that has a checkpoint returns that, and a
wait ends the invocation once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import effectonce as eo
from tests.docs.pages import DOCS, blocks

ORDER = {"order": {"id": "o-1"}}


class Suspended(BaseException):
    """The invocation has ended; the execution continues in another one."""


class Killed(BaseException):
    """The invocation was ended by force."""


class Execution:
    """One durable execution: its checkpoints outlive its invocations."""

    def __init__(self, handler: Callable[[Any, Any], Any]) -> None:
        self._handler = handler
        self._checkpoints: list[str] = []
        self.kill_before_checkpoint = False

    def invoke(self, event: Any) -> Any:
        self._position = 0
        return self._handler(event, self)

    def step(self, function: Callable[[Any], Any]) -> Any:
        if self._position == len(self._checkpoints):
            result = function(SimpleNamespace(attempt=1))
            if self.kill_before_checkpoint:
                self.kill_before_checkpoint = False
                raise Killed
            self._checkpoints.append(json.dumps(result))
        self._position += 1
        return json.loads(self._checkpoints[self._position - 1])

    def wait(self, duration: Any) -> None:
        self._position += 1
        if self._position > len(self._checkpoints):
            self._checkpoints.append("null")
            raise Suspended


def durable_step(function: Any) -> Any:
    return lambda *args: lambda step: function(step, *args)


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The file of the page, as a module's namespace."""
    sdk, config = ModuleType("aws_durable_execution_sdk_python"), ModuleType("aws_durable_execution_sdk_python.config")
    vars(sdk).update(DurableContext=Any, StepContext=Any, durable_execution=lambda f: f, durable_step=durable_step)
    vars(config).update(Duration=SimpleNamespace(from_days=lambda days: days))
    monkeypatch.setitem(sys.modules, sdk.__name__, sdk)
    monkeypatch.setitem(sys.modules, config.__name__, config)
    monkeypatch.setenv("EFFECTONCE_STORE", "memory://")
    page = (DOCS / "guides" / "lambda.md").read_text()
    (code,) = [block.code for block in blocks(page) if block.title == "durable_checkout.py"]
    names: dict[str, Any] = {"__name__": "durable_checkout"}
    exec(compile(code, "durable_checkout.py", "exec"), names)
    return names


def watch(recipe: dict[str, Any]) -> list[str]:
    """The kinds of events of its guard."""
    kinds: list[str] = []
    recipe["store"].add_hook(lambda event: kinds.append(event.kind))
    return kinds


def test_a_replay_does_not_reach_the_guard(recipe: dict[str, Any]) -> None:
    kinds, execution = watch(recipe), Execution(recipe["handler"])
    with pytest.raises(Suspended):
        execution.invoke(ORDER)
    assert execution.invoke(ORDER) == "ch_o-1"
    assert kinds == ["claimed", "completed"]


def test_a_step_that_was_killed_before_its_checkpoint_gets_the_recorded_result(recipe: dict[str, Any]) -> None:
    kinds, execution = watch(recipe), Execution(recipe["handler"])
    execution.kill_before_checkpoint = True
    with pytest.raises(Killed):
        execution.invoke(ORDER)
    with pytest.raises(Suspended):
        execution.invoke(ORDER)
    assert execution.invoke(ORDER) == "ch_o-1"
    assert (recipe["charged"], kinds) == (["o-1"], ["claimed", "completed", "replayed"])


def test_a_step_that_raised_runs_again(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(list[str]):
        def append(self, item: str) -> None:
            monkeypatch.setitem(recipe, "charged", [])
            raise OSError("the bank is closed")

    monkeypatch.setitem(recipe, "charged", Full())
    kinds, execution = watch(recipe), Execution(recipe["handler"])
    with pytest.raises(OSError, match="closed"):
        execution.invoke(ORDER)
    with pytest.raises(Suspended):
        execution.invoke(ORDER)
    assert (recipe["charged"], kinds) == (["o-1"], ["claimed", "released", "claimed", "completed"])


def test_a_redelivered_event_is_another_execution_and_does_not_charge_again(recipe: dict[str, Any]) -> None:
    for _ in range(2):
        execution = Execution(recipe["handler"])
        with pytest.raises(Suspended):
            execution.invoke(ORDER)
        assert execution.invoke(ORDER) == "ch_o-1"
    assert recipe["charged"] == ["o-1"]


def test_a_guard_around_the_handler_would_not_do() -> None:
    """Why the page says so: a suspension is an exception, which the guard takes for a failed attempt."""
    store, runs = eo.connect("memory://", sweep_every=None), []

    @eo.once(store, scope="around", key="event.order.id", on_error="doubt")
    def handler(event: dict[str, Any], context: Execution) -> None:
        runs.append(event)
        context.wait(1)

    execution = Execution(handler)
    with pytest.raises(Suspended):
        execution.invoke(ORDER)
    with pytest.raises(eo.InDoubt):
        execution.invoke(ORDER)
