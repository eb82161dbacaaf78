"""Processes that fork, or are copied, while a store is in use."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from tests.core.grouped import GroupedBackend


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_while_another_thread_is_inside_the_store_does_not_hang_the_child() -> None:
    store = eo.connect("memory://")
    charge = eo.once(store, scope="s", key="k")(lambda k: k)
    backend: Any = store.runtime.backend
    with backend.lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(0 if charge("k") == "k" else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_two_processes_resumed_from_one_snapshot_are_two_owners() -> None:
    """The generator's state is the same in both; the time is not."""
    store = eo.Store(GroupedBackend(latency=0), sweep_every=None)
    runtime = store.runtime
    runtime._random_bits = lambda bits: 7
    owners = set()
    for number in range(3):
        eo.once(store, scope=f"s{number}", key="k")(lambda k: owners.add(eo.current().owner))("k")
        time.sleep(0.000001)
    assert len(owners) == 3


@pytest.mark.parametrize("backend", [MemoryStoreBackend, GroupedBackend])
def test_every_call_has_an_owner_of_its_own(backend: Any) -> None:
    """Nor two engines, as before and after a fork: each begins anew."""
    engines = [eo.Store(backend(), sweep_every=None).runtime for _ in range(2)]
    owners = [runtime.new_owner() for runtime in engines for _ in range(1000)]
    assert len(set(owners)) == 2000
    assert {len(owner) for owner in owners} == {16}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("how", ["seen", "lost"])
def test_a_child_that_returns_from_a_handler_uses_nothing_of_its_parents(how: str) -> None:
    """Neither its connections, whose replies are the parent's, nor locks that threads hold which it does not have."""

    class Mine(GroupedBackend):
        """Its ports tell when they are used by another process than the one that has opened them."""

        def sync_port(self) -> Any:
            port, opened_by = super().sync_port(), os.getpid()
            run = port.run

            async def checked(batch: Any) -> Any:
                if os.getpid() != opened_by:
                    os._exit(4)
                return await run(batch)

            port.run = checked
            return port

    store = eo.Store(Mine(), sweep_every=None)
    parent = os.getpid()

    @eo.once(store, scope="s", key="k", mode="seen" if how == "seen" else "lease")
    def handler(k: str) -> int:
        if how == "lost":
            eo.current().mark_lease_lost()
        return os.fork()

    try:
        child = handler("k")
    except BaseException:
        if os.getpid() != parent:
            os._exit(5)
        raise
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forked_in_a_handler_settles_nothing_of_its_parents(tmp_path: Path) -> None:
    store = eo.connect(f"sqlite:///{tmp_path}/fork.db", sweep_every=None)

    @eo.once(store, scope="s", key="k")
    def handler(k: str) -> str:
        child = os.fork()
        if child == 0:
            try:
                sys.exit(3)  # leaves through the guard, in the child
            except SystemExit as error:
                left.append(error)
                raise
        os.waitpid(child, 0)
        assert store.get("s", k).state == "claimed"  # type: ignore[union-attr]
        return "parent"

    left: list[BaseException] = []
    try:
        assert handler("k") == "parent"
    except SystemExit:
        os._exit(3)
    assert handler.call("k").replayed
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_store_that_cannot_be_renewed_leaves_no_other_with_its_parents_leases(tmp_path: Path) -> None:
    class Stubborn(MemoryStoreBackend):
        def after_fork(self) -> None:
            raise RuntimeError("not here")

    stores = [eo.Store(Stubborn(), sweep_every=None) for _ in range(20)]
    stores.append(eo.connect(f"sqlite:///{tmp_path}/fork.db", sweep_every=None))
    children = []

    @eo.once(stores[-1], scope="s", key="k")
    def handler(k: str) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if not eo.current().protected else 1)
        children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    handler("k")
    assert children == [0]
    for store in stores:
        store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_shares_records_but_no_connections(tmp_path: Path) -> None:
    store = eo.connect(f"sqlite:///{tmp_path}/fork.db")
    runs = tmp_path / "runs"
    charge = eo.once(store, scope="charge", key="k")(lambda k: runs.open("a").write(k) and None)
    charge("a")
    pid = os.fork()
    if pid == 0:
        try:
            charge("a")
            charge("b")
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    charge("b")
    assert runs.read_text() == "ab"
    store.close()
