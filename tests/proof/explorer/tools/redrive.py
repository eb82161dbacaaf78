"""`DeadLetterQueue.redrive`: nothing leaves the dead letters before its re-publish is confirmed; what is done stays so.

An operator redrives, as often as it takes; the workers beside handle what comes back, each under the guard, whose
whole oracle watches. There are three letters: one whose attempts were used up (``k0``), one that is done (``k1``), and
one that is in doubt (``k2``), which a plain redrive leaves where it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from effectonce.broker import Broker
from effectonce.contracts import BrokerCapabilities, DeadLetter, Packet
from effectonce.dead_letters.queue import DeadLetterQueue
from effectonce.errors import BrokerUnavailable
from effectonce.message import Message
from effectonce.record import Answer, Claim, Settlement
from effectonce.store import Store
from effectonce.worker.worker import Worker
from tests.proof.explorer.guard_system import GuardSystem
from tests.proof.explorer.queue_model import SimulatedQueue
from tests.proof.explorer.scenario import LEASE, RETENTION, Scenario
from tests.proof.explorer.simulation import Process, SimulatedDelivery, Simulation
from tests.proof.explorer.system import SCOPE, nowhere
from tests.proof.explorer.transport import Transport

from .outbox import PacketRefused, PublishTransport
from .worker import WHY_DEAD

QUEUE = "orders"
OPERATOR = "redrive"


class RedriveSystem(GuardSystem):
    """``options``: those of `DeadLetterQueue.redrive`. The naive arm ``remove-first`` sends after it removed."""

    capabilities = BrokerCapabilities(name="modelled", batch=16)

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._behind = Store(nowhere, sweep_every=None)
        handle = Broker(self)  # type: ignore[arg-type]
        worker = Worker(handle, store=self._behind)

        @worker.handler(QUEUE, scope=SCOPE, fingerprint=False, lease=LEASE / 1e6, retention=RETENTION / 1e6)
        async def handle_order(message: Message[Any]) -> None:
            raise AssertionError("the guard beside handles it")

        self.queue = DeadLetterQueue(worker, QUEUE)
        self.encode = handle.envelope.encode

    def open(self, simulation: Simulation) -> None:
        simulation.broker = SimulatedQueue(0, 0)
        simulation.broker.send(OPERATOR)
        self.commands = 0
        self.letters: dict[str, Packet] = {}
        for number in range(3):
            key = f"k{number}"
            packet = self.encode(Message(data=key, type="paid", id=key, key=key), QUEUE)
            headers = {**packet.headers, WHY_DEAD: json.dumps({"why": "attempts-exhausted", "attempts": 1})}
            self.letters[str(number)] = Packet(body=packet.body, headers=headers, id=packet.id)
            self._was(simulation, key, ("free", "done", "in_doubt")[number])

    def _was(self, simulation: Simulation, key: str, state: Any) -> None:
        """The record of ``key`` is left as ``state`` by an attempt before."""
        owner = key.encode().ljust(16)
        (reply,) = simulation.apply([Claim(SCOPE, key, owner, LEASE, RETENTION)])
        assert isinstance(reply, Answer)
        grant = simulation.oracle.grant(key, owner, reply.token)
        simulation.oracle.started(key, grant, simulation.now())
        if state == "done":
            simulation.oracle.effect(key, grant)
        result = f'1"charge-{key}-1"'.encode() if state == "done" else None
        simulation.apply([Settlement(SCOPE, key, owner, reply.token, state, RETENTION, result=result)])

    def enter(self, process: Process) -> None:
        super().enter(process)
        self._behind.use_runtime(process.runtime)

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
        if failure is None and not any(each.error for each in report):
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
            simulation.fail("wedged", "the redrive comes to no end")
        left = {packet.id for packet in self.letters.values()}
        anew = bool(self.scenario.options.get("new_generation"))
        expected = set() if anew or self.scenario.naive else {"k2"}
        queued = {entry.key for entry in simulation.broker.entries}
        for key in ("k0", "k1", "k2"):
            lost = key not in left and key not in queued
            if lost:
                simulation.fail("lost", f"{key}: it is neither in the dead letters nor in the queue")
            if key in left and key not in expected:
                simulation.fail("wedged", f"{key}: it is still among the dead letters")
            simulation.tally[key] = (lost, 0)
        most = 1 + (self.commands if anew else 0)
        effects = simulation.oracle.history("k1").effects
        if effects > most and not simulation.faults:
            simulation.fail("doubled", f"k1: its effect happened {effects} times in {self.commands} redrives")
        if simulation.violation is None and not self.scenario.naive:
            faults, simulation.faults = simulation.faults, max(1, simulation.faults)  # k1 has had its effect before
            super().finish(simulation)
            simulation.faults = faults
            for key, (lost, _) in simulation.tally.items():
                simulation.tally[key] = (
                    lost,
                    0,
                )  # what mode L repeats is the guard's affair, and was judged by its rules

    def state_key(self, simulation: Simulation, tag: Any) -> object:
        return tuple(self.letters), min(self.commands, 2)


class SimulatedDeadLetters:
    """`contracts.Publisher` and `contracts.DeadLetters` of one process."""

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
        letters = self._system.letters

        def page() -> list[DeadLetter]:
            return [DeadLetter(id=id, packet=packet, queue=QUEUE) for id, packet in letters.items()]

        return await self._ask("publish", "browse", page, BrowseTransport()), None

    async def remove(self, ids: Sequence[str]) -> int:
        letters = self._system.letters
        return await self._ask(  # type: ignore[no-any-return]
            "publish", "remove", lambda: sum(letters.pop(id, None) is not None for id in ids), RemoveTransport()
        )

    async def _ask(self, kind: Any, name: str, apply: Any, transport: Transport) -> Any:
        return await self._simulation.ask(self._process, kind, (name,), apply, of=self._of, transport=transport)

    async def close(self) -> None: ...


class RemoveTransport(Transport):
    def broken(self, retry: bool) -> Exception:
        return BrokerUnavailable("no answer")


class BrowseTransport(RemoveTransport):
    local = True
    lingers = False
