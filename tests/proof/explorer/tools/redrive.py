"""`DeadLetterQueue.redrive`: a dead letter is removed only after its re-publish is confirmed; done records stay done.

An operator redrives, as often as needed; workers handle the messages that come back, each under the guard, whose whole
oracle judges. There are three dead letters: one whose attempts were exhausted (``k0``), one whose record is done
(``k1``), and one whose record is in doubt (``k2``), which a plain redrive leaves where it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from effectonce.broker import Broker
from effectonce.contracts import BrokerCapabilities, DeadLetter, Packet
from effectonce.dead_letters.queue import DeadLetterQueue
from effectonce.errors import BrokerUnavailable
from effectonce.message import CAUSE_HEADER, Message
from effectonce.record import Answer, Claim, Settlement
from effectonce.store import Store
from effectonce.worker.worker import Worker
from tests.proof.explorer.guard_system import GuardSystem
from tests.proof.explorer.queue_model import SimulatedQueue
from tests.proof.explorer.scenario import LEASE, RETENTION, Scenario
from tests.proof.explorer.simulation import Process, SimulatedDelivery, Simulation
from tests.proof.explorer.system import SCOPE, no_runtime
from tests.proof.explorer.transport import Transport

from .outbox import PacketRefused, PublishTransport

QUEUE = "orders"
OPERATOR = "redrive"


class RedriveSystem(GuardSystem):
    """``options``: those of `DeadLetterQueue.redrive`. The naive arm ``remove-first`` removes before it publishes."""

    capabilities = BrokerCapabilities(name="modelled", batch=16)

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._worker_store = Store(no_runtime, sweep_every=None)
        handle = Broker(self)  # type: ignore[arg-type]
        worker = Worker(handle, store=self._worker_store)

        @worker.handler(QUEUE, scope=SCOPE, fingerprint=False, lease=LEASE / 1e6, retention=RETENTION / 1e6)
        async def handle_order(message: Message[Any]) -> None:
            raise AssertionError("the guarded handler handles it")

        self.queue = DeadLetterQueue(worker, QUEUE)
        self.encode = handle.envelope.encode

    def open(self, simulation: Simulation) -> None:
        simulation.broker = SimulatedQueue(0, 0)
        simulation.broker.send(OPERATOR)
        self.commands = 0
        self.dead_letters_by_id: dict[str, Packet] = {}
        for number in range(3):
            key = f"k{number}"
            packet = self.encode(Message(data=key, type="paid", id=key, key=key), QUEUE)
            headers = {**packet.headers, CAUSE_HEADER: json.dumps({"why": "attempts-exhausted", "attempts": 1})}
            self.dead_letters_by_id[str(number)] = Packet(body=packet.body, headers=headers, id=packet.id)
            self._make_record(simulation, key, ("free", "done", "in_doubt")[number])

    def _make_record(self, simulation: Simulation, key: str, state: Any) -> None:
        """Make the record of ``key`` by an attempt that ended in ``state``."""
        owner = key.encode().ljust(16)
        (reply,) = simulation.apply([Claim(SCOPE, key, owner, LEASE, RETENTION)])
        assert isinstance(reply, Answer)
        grant = simulation.oracle.grant(key, owner, reply.token)
        simulation.oracle.observe_start(key, grant, simulation.now())
        if state == "done":
            simulation.oracle.observe_effect(key, grant)
        result = f'1"charge-{key}-1"'.encode() if state == "done" else None
        simulation.apply([Settlement(SCOPE, key, owner, reply.token, state, RETENTION, result=result)])

    def switch_to(self, process: Process) -> None:
        super().switch_to(process)
        self._worker_store.use_runtime(process.runtime)

    # -- the broker, as `DeadLetterQueue` sees it

    def publisher(self) -> SimulatedDeadLetters:
        return self.dead_letters(QUEUE, group="")

    def dead_letters(self, queue: str, *, group: str) -> SimulatedDeadLetters:
        assert self.simulation is not None
        return SimulatedDeadLetters(self, self.simulation, *self.simulation.current_delivery())

    # -- work

    async def work(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        if delivery.entry.key != OPERATOR:
            await super().work(simulation, process, delivery)
            return
        self.commands += 1
        call = self._remove_first(simulation) if self.scenario.naive else self.queue.aredrive(**self.scenario.options)
        failure: BaseException | None = None
        report: Sequence[Any] = ()
        try:
            report = await call
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
        delivery.inside = False
        if failure is None and not any(redriven.error for redriven in report):
            delivery.entry.settle(delivery.number, "acked")
        simulation.narrate(f"  w{process.slot}: the redrive {'is done' if failure is None else f'raised {failure!r}'}")
        simulation.end_delivery(process, delivery, 1.0)

    async def _remove_first(self, simulation: Simulation) -> Sequence[Any]:
        letters = self.dead_letters(QUEUE, group="")
        for letter in (await letters.browse(100))[0]:
            await letters.remove([letter.id])
            await letters.publish(QUEUE, [letter.packet])
        return ()

    def finish(self, simulation: Simulation) -> None:
        operator = simulation.broker.entries.pop(0)
        if operator.state != "acked":
            simulation.fail("wedged", "the redrive never ends")
        left = {packet.id for packet in self.dead_letters_by_id.values()}
        new_generation = bool(self.scenario.options.get("new_generation"))
        expected = set() if new_generation or self.scenario.naive else {"k2"}
        queued = {entry.key for entry in simulation.broker.entries}
        for key in ("k0", "k1", "k2"):
            lost = key not in left and key not in queued
            if lost:
                simulation.fail("lost", f"{key}: it is neither in the dead letters nor in the queue")
            if key in left and key not in expected:
                simulation.fail("wedged", f"{key}: it is still among the dead letters")
            simulation.tally[key] = (lost, 0)
        max_effects = 1 + (self.commands if new_generation else 0)
        effects = simulation.oracle.history("k1").effects
        if effects > max_effects and not simulation.faults:
            simulation.fail("doubled", f"k1: its effect happened {effects} times in {self.commands} redrives")
        if simulation.violation is None and not self.scenario.naive:
            faults, simulation.faults = (
                simulation.faults,
                max(1, simulation.faults),
            )  # k1 had its effect before the schedule
            super().finish(simulation)
            simulation.faults = faults
            for key, (lost, _) in simulation.tally.items():
                simulation.tally[key] = (lost, 0)  # repetitions that mode L allows were judged by the guard's rules

    def state_key(self, simulation: Simulation, tag: Any) -> object:
        return tuple(self.dead_letters_by_id), min(self.commands, 2)


class SimulatedDeadLetters:
    """The `contracts.Publisher` and `contracts.DeadLetters` of one process."""

    def __init__(
        self, system: RedriveSystem, simulation: Simulation, process: Process, delivery: SimulatedDelivery
    ) -> None:
        self._system = system
        self._simulation = simulation
        self._process = process
        self._of = delivery.number

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        def arrive() -> None:
            for packet in packets:
                self._simulation.broker.send(packet.id)

        try:
            await self._ask("publish", "publish", arrive, PublishTransport())
        except PacketRefused as error:
            return [error for _ in packets]
        return [None] * len(packets)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        letters = self._system.dead_letters_by_id

        def page() -> list[DeadLetter]:
            return [DeadLetter(id=id, packet=packet, queue=QUEUE) for id, packet in letters.items()]

        return await self._ask("publish", "browse", page, BrowseTransport()), None

    async def remove(self, ids: Sequence[str]) -> int:
        letters = self._system.dead_letters_by_id
        return await self._ask(  # type: ignore[no-any-return]
            "publish", "remove", lambda: sum(letters.pop(id, None) is not None for id in ids), RemoveTransport()
        )

    async def _ask(self, kind: Any, name: str, apply: Any, transport: Transport) -> Any:
        return await self._simulation.ask(self._process, kind, (name,), apply, of=self._of, transport=transport)

    async def close(self) -> None: ...


class RemoveTransport(Transport):
    def error_when_lost(self, retry: bool) -> Exception:
        return BrokerUnavailable("no answer")


class BrowseTransport(RemoveTransport):
    local = True
    lingers = False
