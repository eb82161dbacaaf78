"""Runs durable functions on their SDK's local runner, in the SDK's own environment: prints what came of each as JSON.

python durable_executions.py FOLDER    # of durable_checkout.py, the file of the page
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])
os.environ["EFFECTONCE_STORE"] = "memory://"

import durable_checkout as recipe
from aws_durable_execution_sdk_python import DurableContext, StepContext, durable_execution, durable_step
from aws_durable_execution_sdk_python.config import Duration
from aws_durable_execution_sdk_python_testing import DurableFunctionTestRunner

import effectonce as eo
from effectonce.integrations.aws_lambda import lease_until_timeout

logging.disable()
kinds: list[str] = []
recipe.store.add_hook(lambda event: kinds.append(event.kind))
answers: list[dict[str, Any]] = []


def execute(handler: Any, order: str) -> None:
    """One execution, from its start through its waits and retries to its end. The runner skips the time between."""
    kinds.clear()
    with DurableFunctionTestRunner(handler=handler, poll_interval=0.05) as runner:
        result = runner.run(input=json.dumps({"order": {"id": order}}), execution_timeout=300)
    answers.append(
        {
            "handler": handler.__name__,
            "status": result.status.value,
            "result": result.result,
            "charged": recipe.charged.count(order),
            "kinds": kinds.copy(),
        }
    )


checkpoints: list[str] = []


@durable_step
def lose_first_checkpoint(step: StepContext, order: dict[str, Any]) -> str:
    charged = recipe.charge(order)
    if not checkpoints:
        checkpoints.append("lost")
        raise ConnectionError("it ends here, before its checkpoint")
    return charged


@durable_execution
@lease_until_timeout
def interrupted(event: dict[str, Any], context: DurableContext) -> str:
    return context.step(lose_first_checkpoint(event["order"]))


@durable_execution
@lease_until_timeout
@eo.once(recipe.store, scope="around", key=lambda event, context: event["order"]["id"], on_error="doubt")
def guarded_around(event: dict[str, Any], context: DurableContext) -> str:
    context.wait(Duration.from_days(1))
    return "never reached"


execute(recipe.handler, "o-1")
execute(recipe.handler, "o-1")
execute(interrupted, "o-2")
execute(guarded_around, "o-3")
print(json.dumps(answers))
