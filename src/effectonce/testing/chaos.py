"""Stores and brokers whose calls fail at random, repeatably by a seed: for tests that must pass whichever call
fails."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from effectonce.broker import Broker, open_broker
from effectonce.contracts import Backend, ConnectionLost, Delivery, Packet
from effectonce.errors import BrokerUnavailable, InvalidOption, StoreUnavailable
from effectonce.record import Batchable, Renewal, Reply, Settlement
from effectonce.store import Store, open_backend

from .wrapper import Wrapper


class Dice:
    """Decides at random whether a call fails, and how. It counts its decisions. Safe to use from several threads."""

    def __init__(self, failure_rate: float, seed: int) -> None:
        if not 0 <= failure_rate < 1:
            raise InvalidOption(f"failure_rate is at least 0 and below 1, not {failure_rate}")
        self.rate = failure_rate
        self.thrown = self.failed = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def fails(self) -> bool:
        with self._lock:
            self.thrown += 1
            failed = self._random.random() < self.rate
            self.failed += failed
            return failed

    def coin(self) -> bool:
        with self._lock:
            return self._random.random() < 0.5


class ChaosStore(Store):
    """A store that fails: a share of ``failure_rate`` of its claims and settlements is not executed, or is executed but
    not answered. The same ``seed`` fails in the same way, as far as the calls come in the same order. What the store
    does on its own thread (renewing leases, giving grants back) does not fail.

    ``inner`` is the store behind it: a URL, a backend, or a store, whose records it shares. ``dice`` counts the calls
    and the failures.
    """

    def __init__(
        self, inner: str | Backend | Store = "memory://", *, failure_rate: float = 0.2, seed: int = 0, **options: Any
    ) -> None:
        self.dice = Dice(failure_rate, seed)
        if isinstance(inner, Store):
            inner = inner.runtime.backend
        backend = open_backend(inner) if isinstance(inner, str) else inner
        super().__init__(_ChaosBackend(backend, self.dice), **options)


class _Chaos(Wrapper):
    """The base of wrappers whose calls fail as ``dice`` decides."""

    def __init__(self, inner: Any, dice: Dice) -> None:
        super().__init__(inner)
        self._dice = dice

    def __repr__(self) -> str:
        return f"chaos on {self._inner!r}"


class _ChaosBackend(_Chaos):
    def __init__(self, inner: Any, dice: Dice) -> None:
        super().__init__(inner, dice)
        connections = "one" if inner.capabilities.connections == "none" else inner.capabilities.connections
        self.capabilities = replace(inner.capabilities, connections=connections, notifies=False)

    def sync_port(self) -> Any:
        return _ChaosPort(self._inner.sync_port(), self._dice)

    def async_port(self) -> Any:
        return _ChaosPort(self._inner.async_port(), self._dice)


class _ChaosPort(_Chaos):
    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        if all(map(_comes_from_own_thread, batch)) or not self._dice.fails():
            replies: Sequence[Reply] = await self._inner.run(batch)
            return replies
        executed = self._dice.coin()
        if executed:
            await self._inner.run(batch)
        if self._dice.coin():
            raise ConnectionLost(f"chaos: the connection broke {'after' if executed else 'before'} it was executed")
        raise StoreUnavailable("chaos: the store did not answer", 0.0)


def _comes_from_own_thread(op: Batchable) -> bool:
    """Whether ``op`` comes at a moment that no test decides: throwing the dice for it would change what else fails."""
    return isinstance(op, Renewal) or (isinstance(op, Settlement) and op.refund)


class ChaosBroker(Broker):
    """A broker that fails: of publishes, a share of ``failure_rate`` never arrives or is never confirmed; of acks, as
    many are lost, so that what was settled is delivered again when its ack window ends."""

    def __init__(self, inner: str = "memory://", *, failure_rate: float = 0.2, seed: int = 0, **options: Any) -> None:
        self.dice = Dice(failure_rate, seed)
        super().__init__(_ChaosBrokerBackend(open_broker(inner), self.dice), **options)


class _ChaosBrokerBackend(_Chaos):
    def publisher(self) -> Any:
        return _ChaosPublisher(self._inner.publisher(), self._dice)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Any:
        return _ChaosConsumer(self._inner.consumer(queue, group=group, prefetch=prefetch), self._dice)


class _ChaosPublisher(_Chaos):
    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        if not self._dice.fails():
            outcomes: Sequence[Exception | None] = await self._inner.publish(queue, packets)
            return outcomes
        if self._dice.coin():
            await self._inner.publish(queue, packets)
        raise BrokerUnavailable("chaos: the broker did not confirm", 0.0)


class _ChaosConsumer(_Chaos):
    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        if self._dice.fails():
            raise BrokerUnavailable("chaos: the connection broke", 0.0)
        deliveries: Sequence[Delivery] = await self._inner.receive(limit, wait)
        return deliveries

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        sent = [delivery for delivery in deliveries if not self._dice.fails()]
        answers = iter(await self._inner.ack(sent)) if sent else iter(())
        sent_ids = set(map(id, sent))
        return [next(answers) if id(delivery) in sent_ids else True for delivery in deliveries]

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        if self._dice.fails():
            raise BrokerUnavailable("chaos: the dead letters did not confirm", 0.0)
        moved: bool = await self._inner.dead_letter(delivery, headers)
        return moved
