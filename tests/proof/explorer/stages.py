"""Which stage a scenario is played on."""

from __future__ import annotations

from .scenario import Scenario
from .stage import Stage
from .tools.inbox import InboxStage
from .tools.intents import IntentsStage
from .tools.joined import JoinedStage
from .tools.outbox import OutboxStage
from .tools.recovery import IntentsRecoveryStage, SagaRecoveryStage
from .tools.redrive import RedriveStage
from .tools.saga import SagaStage
from .tools.worker import WorkerStage
from .tools.worker_transactions import TransactionsStage
from .workers import GuardStage

STAGES: dict[str, type[Stage]] = {
    "guard": GuardStage,
    "inbox": InboxStage,
    "line": WorkerStage,
    "transactions": TransactionsStage,
    "redrive": RedriveStage,
    "saga": SagaStage,
    "outbox": OutboxStage,
    "intents": IntentsStage,
    "joined": JoinedStage,
    "intents-recovery": IntentsRecoveryStage,
    "saga-recovery": SagaRecoveryStage,
}


def stage_for(scenario: Scenario) -> Stage:
    return STAGES[scenario.part](scenario)
