"""`Outbox` and `Relay`: what is committed leaves, what is not does not, and messages of one key leave in their order.

Handlers write into the outbox in the inbox's transaction, or the rows are there from the start; relays lease, send and
settle them by their own code, one round after another. The same message may leave again, with the same id, where
something went wrong in between (F42).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from effectonce.contracts import BrokerCapabilities, Packet
from effectonce.contracts.outbox import (
    LeaseCandidate,
    LeasedRows,
    LeaseRequest,
    OutboxRow,
    RowOutcome,
    compute_deferrals,
    select_in_turn,
)
from effectonce.core.retry import Retry
from effectonce.envelopes import CloudEvents
from effectonce.errors import BrokerUnavailable, StoreUnavailable
from effectonce.message import Message
from effectonce.outbox.outbox import NewOutboxRow, Outbox
from effectonce.relay.pump import RelayPump
from effectonce.relay.settings import RelaySettings, RelaySignals, RelayTotals
from tests.proof.explorer.database import SimulatedConnection
from tests.proof.explorer.queue_model import SimulatedQueue
from tests.proof.explorer.scenario import LEASE, SECOND, Scenario
from tests.proof.explorer.simulation import Process, SimulatedDelivery, Simulation
from tests.proof.explorer.system import Tag
from tests.proof.explorer.transport import Transport

from .inbox import InboxSystem

TO = "orders"


class SimulatedOutboxRow:
    """One row of the outbox, as the database has it."""

    def __init__(self, seq: int, row: NewOutboxRow) -> None:
        self.seq = seq
        self.row = row
        self.state = "pending"
        self.owner = b""
        self.leased_until = 0
        self.due_at = 0
        self.attempts = 0

    def outgoing(self) -> OutboxRow:
        row = self.row
        return OutboxRow(
            seq=self.seq,
            id=row.id,
            message_id=row.message_id,
            destination=row.destination,
            ordering_key=row.ordering_key,
            type=row.type,
            headers=row.headers,
            payload=row.payload,
            content=row.content,
            trace_id=row.trace_id,
            source=row.source,
            time=row.time,
            attempts=self.attempts,
        )


class SimulatedOutboxTable:
    """The modelled side of the database: what `contracts.OutboxPort` asks of it, each in one transaction."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.all: list[SimulatedOutboxRow] = []

    def add(self, seq: int, row: NewOutboxRow) -> None:
        self.all.append(SimulatedOutboxRow(seq, row))
        self.all.sort(key=lambda line: line.seq)

    def lease(self, lease: LeaseRequest) -> LeasedRows:
        now = self._simulation.now()
        open_ = [line for line in self.all if line.state != "published"]
        wanted = [line for line in open_ if line.row.destination not in lease.without]
        fresh = [
            line
            for line in wanted
            if line.state == "pending"
            and line.seq > lease.after
            and (line.leased_until <= now or line.owner == lease.owner)
        ][: lease.limit]
        due = [line for line in wanted if line.state == "waiting" and line.due_at <= now][: lease.limit]
        candidates = [self._candidate(line, open_, lease.ordered) for line in (*fresh, *due)]
        turn, held = select_in_turn(candidates, lease.take or lease.limit)
        holders = {line.seq: (line.state, line.due_at) for line in open_}
        until = compute_deferrals(held, holders, now)
        for line in open_:
            if line.seq in until:
                line.state, line.due_at = "waiting", until[line.seq]
            if line.seq in turn:
                line.attempts += line.owner != lease.owner
                line.state, line.due_at, line.owner, line.leased_until = "pending", 0, lease.owner, now + lease.span
        taken = [line.outgoing() for line in open_ if line.seq in turn]
        after = fresh[-1].seq if lease.ordered and len(fresh) == lease.limit else 0
        return LeasedRows(taken, after, after > 0 or len(due) == lease.limit)

    @staticmethod
    def _candidate(line: SimulatedOutboxRow, open_: list[SimulatedOutboxRow], ordered: bool) -> LeaseCandidate:
        number = line.row.line if ordered else None
        before = [each.seq for each in open_ if each.row.line == line.row.line and each.seq < line.seq]
        return LeaseCandidate(line.seq, number, before[-1] if before and number is not None else None)

    def settle(self, owner: bytes, outcomes: Sequence[RowOutcome]) -> int:
        now, applied = self._simulation.now(), 0
        for outcome in outcomes:
            for line in self.all:
                if line.seq == outcome.seq and line.owner == owner and line.state == "pending":
                    line.state, line.leased_until, line.owner = outcome.state, 0, b""
                    line.attempts -= outcome.refund
                    line.due_at = now + outcome.span if outcome.state == "waiting" else 0
                    applied += 1
        return applied

    @property
    def next_due(self) -> int | None:
        """In how many microseconds something may be leased; None: all has left."""
        free: dict[int | None, int] = {}  # of each line, when the last row before is free
        times = []
        for line in self.all:
            if line.state != "published":
                at = free[line.row.line] = max(line.leased_until, line.due_at, free.get(line.row.line, 0))
                times.append(at)
        return max(0, min(times) - self._simulation.now()) if times else None


class PacketRefused(Exception):
    """The broker takes the others of a batch, and not this one (F44)."""


class PublishTransport(Transport):
    def broken(self, retry: bool) -> Exception:
        return BrokerUnavailable("no confirmation")

    def refused(self) -> Exception:
        return PacketRefused("this packet is refused")


class SimulatedRelayPort:
    """`contracts.OutboxPort` and `contracts.Publisher` of one relay: each call is a request of its process."""

    table = "effectonce_outbox"

    def __init__(self, system: OutboxSystem, simulation: Simulation, process: Process) -> None:
        self._system = system
        self._simulation = simulation
        self._process = process

    @property
    def _of(self) -> int:
        """The delivery that it is used for."""
        return self._simulation.current_delivery()[1].number

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        asked = replace(lease)  # as it is now: a lane goes on changing it
        if lease.owner not in self._process.owners:
            self._process.owners.append(lease.owner)
        return await self._ask("lease", lambda: self._system.rows.lease(asked))  # type: ignore[no-any-return]

    async def settle(self, owner: bytes, outcomes: Sequence[RowOutcome], keep: int) -> int:
        return await self._ask("settle", lambda: self._system.rows.settle(owner, outcomes))  # type: ignore[no-any-return]

    async def _ask(self, name: str, apply: Any) -> Any:
        return await self._simulation.ask(self._process, "sql", (name,), apply, of=self._of)

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        topic = self._system.topic
        try:
            await self._simulation.ask(
                self._process,
                "publish",
                ("publish",),
                lambda: topic.extend(packets),
                of=self._of,
                transport=PublishTransport(),
            )
        except PacketRefused as error:
            first = packets[0]
            taken = [
                each for each in packets[1:] if each.ordering_key is None or each.ordering_key != first.ordering_key
            ]
            topic.extend(taken)
            return [None if each in taken else error for each in packets]
        return [None] * len(packets)

    async def close(self) -> None: ...


class OutboxSystem(InboxSystem):
    """``worker``: ``relay`` (rows from the start), ``handler`` (handlers write them), or the naive arms
    ``publish-first`` and ``commit-first``, which write to the database and to the broker one after the other."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.outbox = Outbox(to=TO)
        self.capabilities = BrokerCapabilities(
            name="modelled", ordered_publish=bool(scenario.options.get("ordered_publish")), batch=16
        )

    def open(self, simulation: Simulation) -> None:
        super().open(simulation)
        scenario = self.scenario
        self.rows = SimulatedOutboxTable(simulation)
        self.topic: list[Packet] = []
        self.lanes: dict[int, RelayPump] = {}
        self.database.on_send = self.rows.add
        simulation.broker = SimulatedQueue(0, 0)
        if scenario.worker == "relay":
            for key in range(scenario.keys):
                for number in range(scenario.copies):
                    self.database.sequence += 1
                    message = _message(f"k{key}", number)
                    self.rows.add(self.database.sequence, self.outbox.row_for(message))
        else:
            for key in range(scenario.keys):
                for _ in range(scenario.copies):
                    simulation.broker.send(f"k{key}")
        for _ in range(0 if scenario.naive else scenario.workers):
            simulation.broker.send("relay")

    async def handler(self, conn: SimulatedConnection, key: str) -> None:
        await conn.effect(key)
        await self.outbox.send(conn, _message(key, 0))  # type: ignore[call-overload]
        await conn.simulation.ask(conn.process, "point", ("handler",), lambda: None, of=conn.of)

    async def work(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        if delivery.entry.key == "relay":
            await self._relay(simulation, process, delivery)
        elif self.scenario.naive:
            await self.settle_after(simulation, process, delivery, self._write_both(simulation, process, delivery))
        else:
            await super().work(simulation, process, delivery)

    async def _relay(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        """One round of a relay; it is at rest when all has left."""
        lane = self.lanes.get(id(process)) if self.scenario.fine else None  # what it remembers is in no fingerprint
        if lane is None:
            lane = self.lanes[id(process)] = self._lane(simulation, process)
        try:
            await lane.run_round()
        except (StoreUnavailable, asyncio.CancelledError):
            pass
        delivery.inside = False
        due = self.rows.next_due
        if due is None and not [entry for entry in simulation.broker.unsettled() if entry.key != "relay"]:
            delivery.entry.settle(delivery.number, "acked")
        simulation.end_delivery(process, delivery, max(due or 0, SECOND if due is None else 0) / SECOND)

    def _lane(self, simulation: Simulation, process: Process) -> RelayPump:
        port: Any = SimulatedRelayPort(self, simulation, process)
        store: Any = process  # a pump wants the runtime only
        broker: Any = self  # a pump wants the capabilities only
        settings = RelaySettings(
            store=store,
            table=None,
            broker=broker,
            envelope=CloudEvents(),
            retry=Retry(20, first=1e-6, cap=1e-6, jitter=False),
            ordered=True,
            max_batch=int(self.scenario.options.get("batch", 2)),
            lease_us=LEASE,
            keep_us=0,
            poll_s=1.0,
            totals=RelayTotals(),
        )
        return RelayPump(settings, RelaySignals(), port, port)

    async def _write_both(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        key = delivery.entry.key
        publish_first = self.scenario.worker == "publish-first"
        port = SimulatedRelayPort(self, simulation, process)
        packet = CloudEvents().encode(_message(key, 0), TO)
        seen = await simulation.memo(process, "check", lambda: key in simulation.memory)
        if publish_first and not seen:
            await port.publish(TO, [packet])
        await simulation.memo(process, "mark", lambda: simulation.memory.add(key))
        if not publish_first and not seen:
            await port.publish(TO, [packet])

    def finish(self, simulation: Simulation) -> None:
        for entry in simulation.broker.unsettled():
            simulation.fail("wedged", f"message {entry.number} ({entry.key}) has no end")
        sent = [packet.id for packet in self.topic]
        naive = self.scenario.naive
        written = (
            sorted(f"m-{key}-0" for key in simulation.memory)
            if naive
            else [row.row.message_id for row in self.rows.all]
        )
        for id in sorted({*written, *sent}):
            key = id[2:-2]
            count = sent.count(id)
            twice = written.count(id) > 1 or (count > 1 and (naive or not simulation.faults))
            if not count:
                simulation.fail("lost", f"{id}: committed, and it has never left")
            if id not in written:
                simulation.fail("phantom", f"{id}: it has left, and was not committed")
            if twice:
                simulation.fail("doubled", f"{id}: committed {written.count(id)} times, and has left {count} times")
            lost, doubled = simulation.tally.get(key, (False, 0))
            simulation.tally[key] = (lost or not count or id not in written, doubled + twice)
        if not naive and self.scenario.worker == "relay":
            self._in_order(simulation)

    def _in_order(self, simulation: Simulation) -> None:
        first: dict[str, list[str]] = {}
        for packet in self.topic:
            line = first.setdefault(packet.ordering_key or "", [])
            if packet.id not in line:
                line.append(packet.id)
        for key, ids in first.items():
            if ids != sorted(ids):
                simulation.fail("order", f"{key}: they have left as {', '.join(ids)}")

    def state_key(self, simulation: Simulation, tag: Tag) -> object:
        lines = tuple(
            (line.seq, line.state, tag(line.owner), line.leased_until, line.due_at, line.attempts, line.row.message_id)
            for line in self.rows.all
        )
        return super().state_key(simulation, tag), lines, tuple(packet.id for packet in self.topic)

    def summary(self, simulation: Simulation, key: str) -> tuple[object, ...]:
        return tuple(sorted({packet.id for packet in self.topic if packet.ordering_key == key}))


def _message(key: str, number: int) -> Message[Any]:
    return Message(data=key, type="paid", id=f"m-{key}-{number}", key=f"m-{key}-{number}", ordering_key=key)
