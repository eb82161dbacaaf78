"""The system under test of each scenario, by the tool that it explores."""

from __future__ import annotations

from .guard_system import GuardSystem
from .scenario import Scenario
from .system import SystemUnderTest
from .tools.inbox import InboxSystem
from .tools.intents import IntentsSystem
from .tools.joined import JoinedIntentsSystem
from .tools.outbox import OutboxSystem
from .tools.recovery import IntentsRecoverySystem, SagaRecoverySystem
from .tools.redrive import RedriveSystem
from .tools.saga import SagaSystem
from .tools.worker import WorkerSystem
from .tools.worker_transactions import TransactionalWorkerSystem

SYSTEMS: dict[str, type[SystemUnderTest]] = {
    "guard": GuardSystem,
    "inbox": InboxSystem,
    "worker": WorkerSystem,
    "transactions": TransactionalWorkerSystem,
    "redrive": RedriveSystem,
    "saga": SagaSystem,
    "outbox": OutboxSystem,
    "intents": IntentsSystem,
    "joined": JoinedIntentsSystem,
    "intents-recovery": IntentsRecoverySystem,
    "saga-recovery": SagaRecoverySystem,
}


def system_for(scenario: Scenario) -> SystemUnderTest:
    return SYSTEMS[scenario.part](scenario)
