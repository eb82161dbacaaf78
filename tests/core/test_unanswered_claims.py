"""F81: a lost reply leaves a claim without an owner. It is released by its owner, best effort, and not by its lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.core.unanswered_claims import MAX_UNANSWERED, UnansweredClaims
from effectonce.errors import CorruptRecord
from effectonce.record import Claim, Record
from tests.harness.proxy import FaultProxy
from tests.harness.waiting import until


@pytest.fixture(params=["redis", "postgres"])
def behind(request: pytest.FixtureRequest, unique_name: str) -> Iterator[tuple[FaultProxy, eo.Store]]:
    """A store behind a network that can break."""
    url = request.getfixturevalue(f"{request.param}_url")
    option = f"namespace={unique_name}" if request.param == "redis" else f"prefix={unique_name}"
    with eo.connect(f"{url}?{option}") as direct:
        direct.migrate()
    port = urlsplit(url).port
    assert port is not None
    with FaultProxy(port) as proxy:
        through = f"{proxy.through(url)}?{option}&timeout=1&connect_timeout=1"
        with eo.connect(through, sweep_every=None) as store:
            yield proxy, store


def state(store: eo.Store, key: str) -> tuple[str, int] | None:
    record = store.get("charge", key)
    return None if record is None else (record.state, record.attempts)


@pytest.mark.chaos
@pytest.mark.parametrize("is_async", [False, True])
def test_a_grant_whose_reply_was_lost_is_released_long_before_its_lease_ends(
    behind: tuple[FaultProxy, eo.Store], is_async: bool
) -> None:
    proxy, store = behind
    runs: list[str] = []

    @eo.once(store, scope="charge", key="k", lease="10m")
    def charge(k: str) -> None:
        runs.append(k)

    @eo.once(store, scope="charge-async", key="k", lease="10m")
    async def charge_async(k: str) -> None:
        runs.append(k)

    async def lose_reply_async() -> None:
        await charge_async("warm")
        proxy.drop_reply()
        proxy.refuse = True
        with pytest.raises(eo.StoreUnavailable):
            await charge_async("p1")

    if is_async:
        asyncio.run(lose_reply_async())
    else:
        charge("warm")
        proxy.drop_reply()
        proxy.refuse = True
        with pytest.raises(eo.StoreUnavailable):
            charge("p1")
    time.sleep(0.2)  # it has been asked for its release in vain, too
    proxy.heal()
    scope = "charge-async" if is_async else "charge"
    record = until(lambda: (record := store.get(scope, "p1")) is not None and record.state == "free" and record, 20)
    assert (record.attempts, runs) == (0, ["warm"])


class SilentBackend(MemoryStoreBackend):
    """It executes what it is asked, and does not answer while it is ``silent``."""

    silent = False

    def sync_port(self) -> MemoryPort:
        return SilentPort(self)

    async_port = sync_port


class SilentPort(MemoryPort):
    async def run(self, batch: Any) -> Any:
        replies = await super().run(batch)
        if self._backend.silent and isinstance(batch[0], Claim):  # type: ignore[attr-defined]
            raise eo.StoreUnavailable("no answer")
        return replies


@pytest.mark.parametrize(("on_store_error", "left"), [("raise", ("free", 0)), ("run", ("claimed", 1))])
def test_a_handler_that_runs_without_its_store_keeps_what_it_may_have_been_granted(
    on_store_error: Any, left: tuple[str, int]
) -> None:
    """Released, it would let a duplicate run beside it."""
    backend = SilentBackend()
    with eo.Store(backend, sweep_every=None) as store:
        charge = eo.once(store, scope="charge", key="k", on_store_error=on_store_error)(lambda k: time.sleep(0.3))
        backend.silent = True
        if on_store_error == "run":
            charge("p1")
            assert state(store, "p1") == left
        else:
            with pytest.raises(eo.StoreUnavailable):
                charge("p1")
            until(lambda: state(store, "p1") == left)


# -- what is released, and when it is given up


class Seconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def granted(backend: MemoryStoreBackend, key: str, owner: int = 1) -> Claim:
    claim = Claim("charge", key, owner.to_bytes(16), lease_us=30_000_000, retention_us=86_400_000_000)
    asyncio.run(backend.sync_port().run([claim]))
    return claim


def test_the_claim_of_another_owner_stays() -> None:
    backend, unanswered = MemoryStoreBackend(), UnansweredClaims(Seconds())
    granted(backend, "p1")
    unanswered.add(Claim("charge", "p1", bytes(15) + b"x", lease_us=30_000_000, retention_us=1))
    unanswered.add(Claim("charge", "absent", bytes(15) + b"y", lease_us=30_000_000, retention_us=1))
    unanswered.release(backend.sync_port())
    with eo.Store(backend, sweep_every=None) as store:
        assert (state(store, "p1"), state(store, "absent"), bool(unanswered)) == (("claimed", 1), None, False)


def test_it_is_tried_again_until_its_lease_is_over() -> None:
    class Away(MemoryPort):
        asked = 0

        async def get(self, scope: str, key: str) -> Record | None:
            self.asked += 1
            raise eo.StoreUnavailable("away")

    backend, clock = MemoryStoreBackend(), Seconds()
    unanswered, away = UnansweredClaims(clock), Away(backend)
    for number in range(3):
        unanswered.add(granted(backend, f"p{number}", number))
    unanswered.release(away)
    unanswered.release(away)
    assert (away.asked, bool(unanswered)) == (2, True)  # the first alone: the store is away for the others, too
    clock.now = 30.0
    unanswered.release(away)
    assert (away.asked, bool(unanswered)) == (2, False)


def test_a_record_that_cannot_be_read_does_not_hold_up_the_others() -> None:
    class Corrupt(MemoryPort):
        async def get(self, scope: str, key: str) -> Record | None:
            if key == "p1":
                raise CorruptRecord("bytes")
            return await super().get(scope, key)

    backend, unanswered = MemoryStoreBackend(), UnansweredClaims(Seconds())
    unanswered.add(granted(backend, "p1", 1))
    unanswered.add(granted(backend, "p2", 2))
    unanswered.release(Corrupt(backend))
    with eo.Store(backend, sweep_every=None) as store:
        assert (state(store, "p1"), state(store, "p2"), bool(unanswered)) == (("claimed", 1), ("free", 0), False)


def test_there_are_never_too_many() -> None:
    unanswered = UnansweredClaims(Seconds())
    for number in range(MAX_UNANSWERED + 10):
        unanswered.add(Claim("charge", "k", number.to_bytes(16), lease_us=1, retention_us=1))
    assert len(unanswered._claims) == MAX_UNANSWERED
