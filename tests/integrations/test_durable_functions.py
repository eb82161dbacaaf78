"""The recipe for durable functions, run by their SDK's own runner: a replay of theirs is no duplicate of ours."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import skip_or_fail
from tests.docs.pages import DOCS, blocks
from tests.harness.process import ROOT
from tests.harness.servers import Missing

ENVIRONMENT = ROOT / ".servers" / "durable-functions"


@pytest.fixture(scope="module")
def executions(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came of the executions of `durable_executions`, in its order."""
    if not (ENVIRONMENT / ".complete").exists():
        skip_or_fail(str(Missing("the SDK of durable functions", "make servers")))
    folder = tmp_path_factory.mktemp("recipe")
    page = (DOCS / "guides" / "lambda.md").read_text()
    (code,) = [block.code for block in blocks(page) if block.title == "durable_checkout.py"]
    (folder / "durable_checkout.py").write_text(code)
    program = Path(__file__).with_name("durable_executions.py")
    done = subprocess.run(
        [ENVIRONMENT / "bin" / "python", program, folder], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "AWS_DEFAULT_REGION": "eu-west-1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_a_replay_after_a_wait_does_not_reach_the_guard(executions: list[dict[str, Any]]) -> None:
    first = executions[0]
    assert (first["status"], first["result"], first["charged"]) == ("SUCCEEDED", '"ch_o-1"', 1)
    assert first["kinds"] == ["claimed", "completed"]


def test_a_redelivered_event_is_another_execution_and_does_not_charge_again(executions: list[dict[str, Any]]) -> None:
    again = executions[1]
    assert (again["status"], again["result"], again["charged"]) == ("SUCCEEDED", '"ch_o-1"', 1)
    assert again["kinds"] == ["replayed"]


def test_a_step_that_ended_before_its_checkpoint_gets_the_recorded_result(executions: list[dict[str, Any]]) -> None:
    interrupted = executions[2]
    assert (interrupted["status"], interrupted["result"], interrupted["charged"]) == ("SUCCEEDED", '"ch_o-2"', 1)
    assert interrupted["kinds"] == ["claimed", "completed", "replayed"]


def test_a_guard_around_the_handler_would_not_do(executions: list[dict[str, Any]]) -> None:
    """Why the page says so: the SDK suspends with an exception, which the guard takes for a failed attempt."""
    around = executions[3]
    assert around["status"] == "FAILED"
    assert around["kinds"] == ["claimed", "in_doubt", "in_doubt"]
