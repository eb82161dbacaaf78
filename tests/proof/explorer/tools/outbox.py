"""`Outbox` and `Relay`: committed messages are published, others are not, and those of one key keep their order.

Handlers write into the outbox in the inbox's transaction, or the rows are there from the start; relays lease, publish
and settle them by their own code, one round after another. The same message may be published again, with the same id,
where something went wrong in between (F42).
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
from effectonce.relay.settings import RelaySettings, RelayState, RelayTotals
from tests.proof.explorer.database import SimulatedConnection
from tests.proof.explorer.queue_model import SimulatedQueue
from tests.proof.explorer.scenario import LEASE, SECOND, Scenario
from tests.proof.explorer.simulation import Process, SimulatedDelivery, Simulation
from tests.proof.explorer.system import Tag
from tests.proof.explorer.transport import Transport

from .inbox import InboxSystem

QUEUE = "orders"


class SimulatedOutboxRow:
    """One row of the outbox, as the database stores it."""

    def __init__(self, seq: int, row: NewOutboxRow) -> None:
        self.seq = seq
        self.written = row
        self.state = "pending"
        self.owner = b""
        self.leased_until = 0
        self.due_at = 0
        self.attempts = 0

    def outgoing(self) -> OutboxRow:
        row = self.written
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
    """The outbox's table in the modelled database: each operation of `contracts.OutboxPort` is one transaction."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.all: list[SimulatedOutboxRow] = []

    def add(self, seq: int, row: NewOutboxRow) -> None:
        self.all.append(SimulatedOutboxRow(seq, row))
        self.all.sort(key=lambda row: row.seq)

    def lease(self, lease: LeaseRequest) -> LeasedRows:
        now = self._simulation.now()
        unpublished = [row for row in self.all if row.state != "published"]
        wanted = [row for row in unpublished if row.written.destination not in lease.without]
        fresh = [
            row
            for row in wanted
            if row.state == "pending"
            and row.seq > lease.after
            and (row.leased_until <= now or row.owner == lease.owner)
        ][: lease.limit]
        due = [row for row in wanted if row.state == "waiting" and row.due_at <= now][: lease.limit]
        candidates = [self._candidate(row, unpublished, lease.ordered) for row in (*fresh, *due)]
        turn, blocked = select_in_turn(candidates, lease.take or lease.limit)
        holders = {row.seq: (row.state, row.due_at) for row in unpublished}
        deferred_until = compute_deferrals(blocked, holders, now)
        for row in unpublished:
            if row.seq in deferred_until:
                row.state, row.due_at = "waiting", deferred_until[row.seq]
            if row.seq in turn:
                row.attempts += row.owner != lease.owner
                row.state, row.due_at, row.owner, row.leased_until = "pending", 0, lease.owner, now + lease.lease_us
        taken = [row.outgoing() for row in unpublished if row.seq in turn]
        after = fresh[-1].seq if lease.ordered and len(fresh) == lease.limit else 0
        return LeasedRows(taken, after, after > 0 or len(due) == lease.limit)

    @staticmethod
    def _candidate(row: SimulatedOutboxRow, unpublished: list[SimulatedOutboxRow], ordered: bool) -> LeaseCandidate:
        number = row.written.line if ordered else None
        before = [other.seq for other in unpublished if other.written.line == row.written.line and other.seq < row.seq]
        return LeaseCandidate(row.seq, number, before[-1] if before and number is not None else None)

    def settle(self, owner: bytes, outcomes: Sequence[RowOutcome]) -> int:
        now, applied = self._simulation.now(), 0
        for outcome in outcomes:
            for row in self.all:
                if row.seq == outcome.seq and row.owner == owner and row.state == "pending":
                    row.state, row.leased_until, row.owner = outcome.state, 0, b""
                    row.attempts -= outcome.refund
                    row.due_at = now + outcome.wait_us if outcome.state == "waiting" else 0
                    applied += 1
        return applied

    @property
    def next_due(self) -> int | None:
        """Return in how many microseconds a row may be leased; None: all are published."""
        line_free_at: dict[int | None, int] = {}  # by line: when the row before may leave
        times = []
        for row in self.all:
            if row.state != "published":
                line = row.written.line
                line_free_at[line] = max(row.leased_until, row.due_at, line_free_at.get(line, 0))
                times.append(line_free_at[line])
        return max(0, min(times) - self._simulation.now()) if times else None


class PacketRefused(Exception):
    """The broker accepts the other packets of a batch, and not this one (F44)."""


class PublishTransport(Transport):
    def error_when_lost(self, retry: bool) -> Exception:
        return BrokerUnavailable("no confirmation")

    def rejection(self) -> Exception:
        return PacketRefused("this packet is refused")


class SimulatedRelayPort:
    """The `contracts.OutboxPort` and `contracts.Publisher` of one relay: each call is a request of its process."""

    table = "effectonce_outbox"

    def __init__(self, system: OutboxSystem, simulation: Simulation, process: Process) -> None:
        self._system = system
        self._simulation = simulation
        self._process = process

    @property
    def _of(self) -> int:
        """The number of the delivery that it is used for."""
        return self._simulation.current_delivery()[1].number

    async def lease(self, lease: LeaseRequest) -> LeasedRows:
        request = replace(lease)  # as it is now: the pump changes it later
        if lease.owner not in self._process.owners:
            self._process.owners.append(lease.owner)
        return await self._ask("lease", lambda: self._system.rows.lease(request))  # type: ignore[no-any-return]

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
            refused_key = packets[0].ordering_key
            accepted = [p for p in packets[1:] if p.ordering_key is None or p.ordering_key != refused_key]
            topic.extend(accepted)
            return [None if packet in accepted else error for packet in packets]
        return [None] * len(packets)

    async def close(self) -> None: ...


class OutboxSystem(InboxSystem):
    """``worker``: ``relay`` (rows from the start), ``handler`` (handlers write them), or the naive arms
    ``publish-first`` and ``commit-first``, which write to the database and to the broker one after the other."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.outbox = Outbox(to=QUEUE)
        self.capabilities = BrokerCapabilities(
            name="modelled", ordered_publish=bool(scenario.options.get("ordered_publish")), batch=16
        )

    def open(self, simulation: Simulation) -> None:
        super().open(simulation)
        scenario = self.scenario
        self.rows = SimulatedOutboxTable(simulation)
        self.topic: list[Packet] = []
        self.pumps: dict[int, RelayPump] = {}
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
        """Run one round of a relay; it ends when all rows are published."""
        # A pump's memory is in no fingerprint: only scenarios without fingerprints keep it.
        pump = self.pumps.get(id(process)) if self.scenario.fine else None
        if pump is None:
            pump = self.pumps[id(process)] = self._make_pump(simulation, process)
        try:
            await pump.run_round()
        except (StoreUnavailable, asyncio.CancelledError):
            pass
        delivery.inside = False
        due = self.rows.next_due
        if due is None and not [entry for entry in simulation.broker.unsettled() if entry.key != "relay"]:
            delivery.entry.settle(delivery.number, "acked")
        simulation.end_delivery(process, delivery, max(due or 0, SECOND if due is None else 0) / SECOND)

    def _make_pump(self, simulation: Simulation, process: Process) -> RelayPump:
        port: Any = SimulatedRelayPort(self, simulation, process)
        store: Any = process  # the pump needs its runtime only
        broker: Any = self  # the pump needs its capabilities only
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
        return RelayPump(settings, RelayState(), port, port)

    async def _write_both(self, simulation: Simulation, process: Process, delivery: SimulatedDelivery) -> None:
        key = delivery.entry.key
        publish_first = self.scenario.worker == "publish-first"
        port = SimulatedRelayPort(self, simulation, process)
        packet = CloudEvents().encode(_message(key, 0), QUEUE)
        seen = await simulation.ask_memory(process, "check", lambda: key in simulation.memory)
        if publish_first and not seen:
            await port.publish(QUEUE, [packet])
        await simulation.ask_memory(process, "mark", lambda: simulation.memory.add(key))
        if not publish_first and not seen:
            await port.publish(QUEUE, [packet])

    def finish(self, simulation: Simulation) -> None:
        for entry in simulation.broker.unsettled():
            simulation.fail("wedged", f"message {entry.number} ({entry.key}) is never settled")
        sent = [packet.id for packet in self.topic]
        naive = self.scenario.naive
        written = (
            sorted(f"m-{key}-0" for key in simulation.memory)
            if naive
            else [row.written.message_id for row in self.rows.all]
        )
        for id in sorted({*written, *sent}):
            key = id[2:-2]
            count = sent.count(id)
            is_doubled = written.count(id) > 1 or (count > 1 and (naive or not simulation.faults))
            if not count:
                simulation.fail("lost", f"{id}: committed, and never published")
            if id not in written:
                simulation.fail("phantom", f"{id}: published, and was not committed")
            if is_doubled:
                simulation.fail("doubled", f"{id}: committed {written.count(id)} times, and published {count} times")
            lost, doubled = simulation.tally.get(key, (False, 0))
            simulation.tally[key] = (lost or not count or id not in written, doubled + is_doubled)
        if not naive and self.scenario.worker == "relay":
            self._check_order(simulation)

    def _check_order(self, simulation: Simulation) -> None:
        ids_by_key: dict[str, list[str]] = {}
        for packet in self.topic:
            ids = ids_by_key.setdefault(packet.ordering_key or "", [])
            if packet.id not in ids:
                ids.append(packet.id)
        for key, ids in ids_by_key.items():
            if ids != sorted(ids):
                simulation.fail("order", f"{key}: published in the order {', '.join(ids)}")

    def state_key(self, simulation: Simulation, tag: Tag) -> object:
        rows = tuple(
            (row.seq, row.state, tag(row.owner), row.leased_until, row.due_at, row.attempts, row.written.message_id)
            for row in self.rows.all
        )
        return super().state_key(simulation, tag), rows, tuple(packet.id for packet in self.topic)

    def summary(self, simulation: Simulation, key: str) -> tuple[object, ...]:
        return tuple(sorted({packet.id for packet in self.topic if packet.ordering_key == key}))


def _message(key: str, number: int) -> Message[Any]:
    return Message(data=key, type="paid", id=f"m-{key}-{number}", key=f"m-{key}-{number}", ordering_key=key)
