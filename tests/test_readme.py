"""The README's example runs. Each window that docs/run-twice.md names is a real one, with a remedy that works."""

from __future__ import annotations

import contextlib
import contextvars
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import effectonce as eo
from effectonce.backends.memory.store import MemoryPort, MemoryStoreBackend
from effectonce.record import Batchable, Reply, Settlement
from effectonce.testing import ManualClock

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_its_example_runs_and_prints_one_label_also_when_it_is_run_again(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for printed in ("printing the label of order-42\n", ""):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", printed)


def test_the_make_targets_it_names_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= set(re.findall(r"make (\w+)", README)) & targets


# -- When can my code run twice? ------------------------------------------------------------------------------


class Port(MemoryPort):
    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        backend: Any = self._backend
        settling = any(isinstance(op, Settlement) for op in batch)
        if backend.down or (backend.down_after_the_effect and settling):
            raise eo.StoreUnavailable("the store does not answer")
        return await super().run(batch)


class Backend(MemoryStoreBackend):
    """A store that can be down; reached as a server is, through `run` alone."""

    capabilities = structs.replace(MemoryStoreBackend.capabilities, connections="one")
    down = False
    down_after_the_effect = False

    def sync_port(self) -> Port:
        return Port(self)


class World:
    """Several processes that share one store and one card network."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend = Backend(clock=self.clock)
        self.charges: list[str] = []
        self.after: Callable[[], object] = lambda: None  # what happens right after the effect
        self.events: list[str] = []

    def process(self, **options: Any) -> eo.Store:
        hooks = [lambda event: self.events.append(event.kind)]
        return eo.Store(self.backend, hooks=hooks, sweep_every=None, **options)

    def charge(self, payment_id: str | None = "pay_7f3a", store: eo.Store | None = None, **options: Any) -> None:
        """One delivery to a process of its own."""

        def handler(payment_id: str) -> None:
            self.charges.append(payment_id)
            self.after()

        options.setdefault("scope", "charge-card")
        eo.once(store or self.process(), key="payment_id", **options)(handler)(payment_id)  # type: ignore[arg-type]

    def die_while_charging(self, **options: Any) -> None:
        """A process that charges and is gone: it settles nothing and renews nothing."""

        def live() -> None:
            eo.block(self.process(), scope="charge-card", key="pay_7f3a", **options).__enter__()
            self.charges.append("pay_7f3a")

        contextvars.copy_context().run(live)

    @contextlib.contextmanager
    def then(self, happens: Callable[[], object]) -> Iterator[None]:
        self.after = happens
        yield
        self.after = lambda: None

    def raising(self, error: BaseException) -> contextlib.AbstractContextManager[None]:
        def happens() -> None:
            raise error

        return self.then(happens)

    def twice(self) -> bool:
        return len(self.charges) == 2

    def once(self) -> bool:
        return len(self.charges) == 1


def died(world: World) -> None:
    world.die_while_charging()
    world.clock.advance("31s")
    world.charge()
    assert world.twice()


def died_remedy(world: World) -> None:
    world.die_while_charging(on_lapse="doubt")
    world.clock.advance("31s")
    with pytest.raises(eo.InDoubt):
        world.charge(on_lapse="doubt")
    assert world.once()
    world.process().resolve("charge-card", "pay_7f3a", "done")
    world.charge(on_lapse="doubt")
    assert world.once()


def lost_lease(world: World) -> None:
    def stopped() -> None:
        world.after = lambda: None
        world.clock.advance("31s")
        world.charge()

    with world.then(stopped), pytest.raises(eo.LeaseLost):
        world.charge()
    assert world.twice()


def lost_lease_remedy(world: World) -> None:
    """The first one asks before its effect; the one that took over has a larger token."""
    tokens: list[int] = []

    @eo.once(world.process(), scope="charge-card", key="payment_id")
    def charge(payment_id: str) -> None:
        tokens.append(eo.current().token)
        world.clock.advance("31s")
        with world.then(lambda: tokens.append(eo.current().token)):
            world.charge()
        if not eo.current().lease_lost:
            world.charges.append(payment_id)

    with pytest.raises(eo.LeaseLost):
        charge("pay_7f3a")
    assert world.once()
    assert tokens[0] < tokens[1]


@pytest.mark.parametrize("stops_by", ["raising", "returning"])
def test_a_handler_whose_lease_ran_out_with_no_successor_raises_since_its_return_would_count_as_done(
    stops_by: str,
) -> None:
    world = World()
    pauses = ["31s"]

    @eo.once(world.process(), scope="charge-card", key="payment_id")
    def charge(payment_id: str) -> None:
        if pauses:
            world.clock.advance(pauses.pop())
        if not eo.current().lease_lost:
            world.charges.append(payment_id)
        elif stops_by == "raising":
            raise eo.Retryable("lease lost")

    with pytest.raises(eo.Retryable) if stops_by == "raising" else contextlib.nullcontext():
        charge("pay_7f3a")
    charge("pay_7f3a")
    assert world.charges == (["pay_7f3a"] if stops_by == "raising" else [])


def cancelled(world: World) -> None:
    with world.raising(KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        world.charge()
    world.charge()
    assert world.twice()


def cancelled_remedy(world: World) -> None:
    with world.raising(KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        world.charge(on_error="doubt")
    with pytest.raises(eo.InDoubt):
        world.charge(on_error="doubt")
    assert world.once()


def raised(world: World) -> None:
    with world.raising(OSError("no answer")), pytest.raises(OSError, match="no answer"):
        world.charge()
    world.charge()
    assert world.twice()


def raised_remedy(world: World) -> None:
    remedies: dict[str, tuple[dict[str, Any], type[Exception]]] = {
        "pay_1": ({"on_error": "doubt"}, eo.InDoubt),
        "pay_2": ({"permanent": (OSError,)}, OSError),
    }
    for payment_id, (options, again) in remedies.items():
        with world.raising(OSError("no answer")), pytest.raises(OSError, match="no answer"):
            world.charge(payment_id, **options)
        with pytest.raises(again):
            world.charge(payment_id, **options)
    assert world.charges == ["pay_1", "pay_2"]


def unrecorded(world: World) -> None:
    world.backend.down_after_the_effect = True
    with pytest.raises(eo.StoreUnavailable):
        world.charge()
    world.backend.down_after_the_effect = False
    world.clock.advance("31s")
    world.charge()
    assert world.twice()


def unrecorded_remedy(world: World) -> None:
    world.backend.down_after_the_effect = True
    with pytest.raises(eo.StoreUnavailable):
        world.charge(on_lapse="doubt")
    world.backend.down_after_the_effect = False
    world.clock.advance("31s")
    with pytest.raises(eo.InDoubt):
        world.charge(on_lapse="doubt")
    assert world.once()


def store_lost_data(world: World) -> None:
    world.charge()
    world.backend = Backend(clock=world.clock)  # what was promoted knows of nothing
    world.charge()
    assert world.twice()


def store_lost_data_remedy(world: World) -> None:
    """That a Redis which evicts is refused is tested on a real one (F29); here, what says that memory forgets."""
    assert not world.process().capabilities.durable


def retention_over(world: World) -> None:
    world.charge()
    world.clock.advance("16d")
    world.charge()
    assert world.twice()


def retention_over_remedy(world: World) -> None:
    world.charge(retention="30d")
    world.clock.advance("16d")
    world.charge(retention="30d")
    assert world.once()


def new_key(world: World) -> None:
    world.charge(eo.Message(data=4200).id)
    world.charge(eo.Message(data=4200).id)
    assert world.twice()


def new_key_remedy(world: World) -> None:
    minted = eo.Message(data=4200).id
    world.charge(minted)
    world.charge(minted)
    assert world.once()


def _rename_between(world: World, scope: str | None) -> None:
    def charge(payment_id: str) -> None:
        world.charges.append(payment_id)

    def charge_card(payment_id: str) -> None:
        world.charges.append(payment_id)

    for handler in (charge, charge_card):
        eo.once(world.process(), key="payment_id", scope=scope)(handler)("pay_7f3a")


def scope_changed(world: World) -> None:
    _rename_between(world, scope=None)
    assert world.twice()


def scope_changed_remedy(world: World) -> None:
    _rename_between(world, scope="charge-card")
    assert world.once()


def store_changed(world: World) -> None:
    world.charge(store=world.process(private="the old secret, long enough to be one"))
    world.charge(store=world.process(private="the new secret, long enough to be one"))
    assert world.twice()


def store_changed_remedy(world: World) -> None:
    for _ in range(2):
        world.charge(store=world.process(private="the old secret, long enough to be one"))
    assert world.once()


def missing_key(world: World) -> None:
    for _ in range(2):
        world.charge(None, on_missing_key="run")
    assert world.twice()
    assert world.events.count("missing_key") == 2


def missing_key_remedy(world: World) -> None:
    with pytest.raises(eo.MissingKey):
        world.charge(None)
    assert not world.charges


def store_error(world: World) -> None:
    world.backend.down = True
    for _ in range(2):
        world.charge(on_store_error="run")
    assert world.twice()
    assert world.events.count("unprotected") == 2


def store_error_remedy(world: World) -> None:
    world.backend.down = True
    with pytest.raises(eo.StoreUnavailable):
        world.charge()
    assert not world.charges


def _at_the_same_time(world: World, **options: Any) -> None:
    def second() -> None:
        world.after = lambda: None
        world.charge(**options)

    with world.then(second):
        world.charge(**options)


def seen(world: World) -> None:
    _at_the_same_time(world, mode="seen")
    assert world.twice()


def seen_remedy(world: World) -> None:
    with pytest.raises(eo.InProgress):
        _at_the_same_time(world)
    assert world.once()


def said_so(world: World) -> None:
    keys: set[str] = set()
    with world.then(lambda: keys.add(eo.current().provider_key("stripe"))):
        world.charge()
        world.process().forget("charge-card", "pay_7f3a")
        world.charge()
    assert world.twice()
    assert len(keys) == 2


def said_so_remedy(world: World) -> None:
    """A record that is not in doubt cannot be retried by mistake."""
    world.charge()
    with pytest.raises(eo.NotInDoubt):
        world.process().resolve("charge-card", "pay_7f3a", "retry")
    world.charge()
    assert world.once()


#: The rows of the table in docs/run-twice.md, in its order: how the effect is doubled, and the remedy.
WINDOWS: dict[str, tuple[Callable[[World], None], Callable[[World], None]]] = {
    "The attempt died": (died, died_remedy),
    "The lease was lost": (lost_lease, lost_lease_remedy),
    "It was cancelled": (cancelled, cancelled_remedy),
    "It raised": (raised, raised_remedy),
    "The completion was not recorded": (unrecorded, unrecorded_remedy),
    "The store lost data": (store_lost_data, store_lost_data_remedy),
    "Retention is over": (retention_over, retention_over_remedy),
    "The sender made a new key": (new_key, new_key_remedy),
    "The scope changed": (scope_changed, scope_changed_remedy),
    "The store changed": (store_changed, store_changed_remedy),
    '`on_missing_key="run"`': (missing_key, missing_key_remedy),
    '`on_store_error="run"`': (store_error, store_error_remedy),
    "A seen-set": (seen, seen_remedy),
    "An operator said so": (said_so, said_so_remedy),
}


def test_every_window_of_the_table_is_shown_here() -> None:
    page = (ROOT / "docs" / "run-twice.md").read_text()
    assert re.findall(r"^\| \*\*(.+?)\*\* \|", page, re.MULTILINE) == list(WINDOWS)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_is_real(window: str) -> None:
    WINDOWS[window][0](World())


@pytest.mark.parametrize("window", WINDOWS)
def test_its_remedy_works(window: str) -> None:
    WINDOWS[window][1](World())
