"""What is refused before anything happens, and definitions that change while sagas are in flight."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import effectonce as eo
from effectonce.sagas.log import StepProgress
from effectonce.sagas.recovery import ResumeCounts

from .shop import Order, Receipt, Shop, order_saga

ORDER = Order("o-1")


@pytest.fixture
def store() -> eo.Store:
    return eo.connect("memory://", sweep_every=None)


def saga_of(store: eo.Store, done: list[str], *names: str, version: str = "1") -> eo.Saga[Order]:
    saga = eo.Saga("order", store, input=Order, version=version)
    for name in names:
        saga.step(name=name)(_named(done, name))
    return saga


def _named(done: list[str], name: str) -> Any:
    """A step that says its name and key; the one called ``bad`` does not know what it did."""

    def step(order: Order) -> None:
        done.append(f"{name} as {eo.current().key}")
        if name == "bad":
            raise eo.OutcomeUnknown("?", 0.0)

    return step


def in_flight(store: eo.Store, *names: str) -> None:
    with pytest.raises(eo.OutcomeUnknown):
        saga_of(store, [], *names).run("o-1", ORDER)


# -- definitions


def test_a_changed_definition_is_refused_and_the_saga_left_as_it_is(
    store: eo.Store, caplog: pytest.LogCaptureFixture
) -> None:
    in_flight(store, "reserve", "bad")
    before = store.get("saga/order", "o-1")
    new = saga_of(store, [], "reserve", "charge", version="2")
    with pytest.raises(eo.SagaChanged, match=r"under version '1' with the steps reserve, bad, and .* '2' .* charge"):
        new.run("o-1", ORDER)
    with caplog.at_level(logging.WARNING):
        assert new.resume() == ResumeCounts(refused=1)
    assert "saga.migrate('1'" in caplog.text
    after = store.get("saga/order", "o-1")
    assert before is not None
    assert after is not None
    assert (before.note, before.state) == (after.note, after.state)


@pytest.mark.parametrize("name", ["a\0b", "x" * 1000, "\ud800"])
def test_a_name_that_no_store_can_keep_is_refused_at_once(store: eo.Store, name: str) -> None:
    with pytest.raises(eo.ConfigurationError, match="must be a text of 1 to"):
        eo.Saga(name, store, input=Order)


def test_a_renamed_step_goes_on_under_its_old_key(store: eo.Store) -> None:
    """A new key would do it again."""
    in_flight(store, "reserve", "bad", "ship")
    done: list[str] = []
    new = saga_of(store, done, "book", "charge", "ship", version="2")
    new.migrate("1", {"reserve": "book", "bad": "charge"})
    assert new.resume() == ResumeCounts(done=1)
    assert done == ["charge as order/o-1/bad", "ship as order/o-1/ship"]


@pytest.mark.parametrize(
    ("names", "renamed", "said"),
    [
        (["charge", "ship"], {"bad": "charge"}, "reserve has started and is not a step any more"),
        (["check", "reserve", "charge"], {"bad": "charge"}, "a step stands before charge that has not run"),
        (["reserve", "charge"], {"bad": "charge", "ship": "charge"}, "two of its steps one"),
    ],
)
def test_a_migration_that_cannot_be(store: eo.Store, names: list[str], renamed: dict[str, str], said: str) -> None:
    in_flight(store, "reserve", "bad", "ship")
    new = saga_of(store, [], *names, version="2")
    new.migrate("1", renamed)
    with pytest.raises(eo.SagaChanged, match=said):
        new.run("o-1", ORDER)
    assert new.get("o-1").state == "free"  # type: ignore[union-attr]


def test_a_migration_to_nowhere_is_refused(store: eo.Store) -> None:
    saga = saga_of(store, [], "reserve")
    with pytest.raises(eo.ConfigurationError, match="is not a step of saga order; its steps are reserve"):
        saga.migrate("1", {"book": "booked"})
    with pytest.raises(
        eo.ConfigurationError, match="book is to lose its compensation, which is not a step of saga order"
    ):
        saga.migrate("1", {}, drop_compensation=["book"])
    assert saga.migrations == {}


def test_a_renamed_step_in_doubt_is_resolved_as_the_one_it_is_now(store: eo.Store) -> None:
    old = eo.Saga("order", store, input=Order)

    @old.step()
    def charge(order: Order) -> str:
        raise eo.InDoubt("who knows")

    with pytest.raises(eo.InDoubt):
        old.run("o-1", ORDER)
    new = eo.Saga("order", eo.Store(store.runtime.backend, sweep_every=None), input=Order, version="2")

    @new.step()
    def pay(order: Order) -> str:
        raise AssertionError("it is done")

    with pytest.raises(eo.SagaChanged, match=r"saga.migrate\('1'"):
        new.resolve("o-1", "done", result="ch_1")
    assert new.get("o-1").state == "in_doubt"  # type: ignore[union-attr]
    new.migrate("1", {"charge": "pay"})
    new.resolve("o-1", "done", result="ch_1")
    assert new.resume() == ResumeCounts(done=1)
    assert new.run("o-1", ORDER)[pay] == "ch_1"


def test_f38_progress_that_an_earlier_release_wrote_has_nothing_of_what_came_later() -> None:
    """Above all no rounds: they are part of the keys that providers know."""
    progress = msgspec.convert(["running", 2], StepProgress)
    assert (progress.state, progress.attempts, progress.crashes, progress.rounds) == ("running", 2, 0, 0)
    assert (progress.began, progress.ended, progress.error) == (0, 0, "")
    assert (progress.unknown_since, progress.guessed) == (0, False)


def test_a_failed_step_that_was_renamed_is_called_by_its_name_of_now(store: eo.Store) -> None:
    """It failed under the old release, which was ended during the compensation."""

    def saga_with(charge: str, version: str, release: Callable[[Order], None]) -> eo.Saga[Order]:
        saga = eo.Saga("order", eo.Store(store.runtime.backend, sweep_every=None), input=Order, version=version)
        saga.step(name="reserve")(lambda order: None).compensate(release)

        @saga.step(name=charge)
        def decline(order: Order) -> None:
            raise eo.PermanentFailure("declined")

        return saga

    def end_process(order: Order) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        saga_with("charge", "1", end_process).run("o-1", ORDER)
    new = saga_with("pay", "2", lambda order: None)
    new.migrate("1", {"charge": "pay"})
    with pytest.raises(eo.SagaFailed, match="failed at step pay") as failure:
        new.run("o-1", ORDER)
    assert failure.value.step == "pay"


# -- a compensation that is gone


def undoable(
    store: eo.Store, did: list[str], *, undo: bool = True, error: BaseException | None = None, at: str = "charge"
) -> eo.Saga[Order]:
    """Reserve, which may have a compensation, and charge. One of them raises ``error``."""
    saga = eo.Saga("order", eo.Store(store.runtime.backend, sweep_every=None), input=Order)

    def do(name: str) -> Any:
        def step(order: Order) -> None:
            did.append(name)
            if error is not None and name == at:
                raise error

        return step

    reserve = saga.step(name="reserve")(do("reserve"))
    if undo:
        reserve.compensate(lambda order: did.append("release"))
    saga.step(name="charge")(do("charge"))
    return saga


def test_a_compensation_that_is_gone_is_noticed_where_it_may_be_needed(
    store: eo.Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing else would ever release what is reserved."""
    did: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        undoable(store, did, error=KeyboardInterrupt()).run("o-1", ORDER)
    without = undoable(store, did, undo=False, error=eo.PermanentFailure("declined"))
    assert without.resume() == ResumeCounts(refused=1)
    assert "reserve may have happened, and its compensation was removed" in caplog.text
    assert without.get("o-1").state == "free"  # type: ignore[union-attr]
    assert undoable(store, did, error=eo.PermanentFailure("declined")).resume() == ResumeCounts(failed=1)
    assert did == ["reserve", "charge", "charge", "release"]


def test_a_compensation_that_is_gone_on_purpose_is_said_to_be(store: eo.Store) -> None:
    did: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        undoable(store, did, error=KeyboardInterrupt()).run("o-1", ORDER)
    without = undoable(store, did, undo=False, error=eo.PermanentFailure("declined"))
    without.migrate("1", {}, drop_compensation=["reserve"])
    assert without.resume() == ResumeCounts(failed=1)
    assert did == ["reserve", "charge", "charge"]


def test_a_compensation_that_is_gone_is_not_missed_by_what_has_not_begun(store: eo.Store) -> None:
    did: list[str] = []
    undoable(store, did).start("o-1", ORDER)
    assert undoable(store, did, undo=False).resume() == ResumeCounts(done=1)


def test_a_compensation_that_is_gone_is_noticed_where_nobody_knows_what_its_step_did(store: eo.Store) -> None:
    did: list[str] = []
    with pytest.raises(eo.OutcomeUnknown):
        undoable(store, did, error=eo.OutcomeUnknown("?", 0.0), at="reserve").run("o-1", ORDER)
    with pytest.raises(eo.SagaChanged, match="its compensation was removed"):
        undoable(store, did, undo=False).run("o-1", ORDER)


def test_a_compensation_that_is_new_undoes_what_was_done_before(store: eo.Store) -> None:
    did: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        undoable(store, did, undo=False, error=KeyboardInterrupt()).run("o-1", ORDER)
    assert undoable(store, did, error=eo.PermanentFailure("declined")).resume() == ResumeCounts(failed=1)
    assert did == ["reserve", "charge", "charge", "release"]


# -- what is refused


@pytest.mark.parametrize(
    "function", [lambda: None, lambda a, b, c: None, 3, lambda a, *, b: None, lambda a, amount=5: None]
)
def test_a_step_takes_input_and_done(store: eo.Store, function: Any) -> None:
    saga = eo.Saga("order", store, input=Order)
    with pytest.raises(eo.ConfigurationError):
        saga.step(name="one")(function)
    assert saga.steps == {}


def test_a_default_that_would_never_be_used_is_refused(store: eo.Store) -> None:
    saga = eo.Saga("order", store, input=Order)
    with pytest.raises(eo.ConfigurationError, match=r"has a default for amount, .* make amount keyword-only"):

        @saga.step()
        def one(order: Order, amount: int = 5) -> None: ...

    @saga.step()
    def two(order: Order, *, amount: int = 5) -> int:
        return amount

    with pytest.raises(eo.ConfigurationError, match="has a default for amount"):

        @two.compensate
        def undo(order: Order, amount: int = 5) -> None: ...

    @saga.step()
    def three(order: Order, done: eo.Done | None = None) -> int:
        assert done is not None
        return done[two]

    assert saga.run("o-1", ORDER)[three] == 5


@pytest.mark.parametrize("name", ["a/b", "compensate", "x" * 81, "é" * 41, "new\nline"])
def test_a_name_that_could_be_read_as_another_is_refused(store: eo.Store, name: str) -> None:
    with pytest.raises(eo.ConfigurationError, match="cannot be the name of a step"):
        eo.Saga("order", store, input=Order).step(name=name)(lambda order: None)


def test_two_steps_or_compensations_of_one_name_are_refused(store: eo.Store) -> None:
    saga = eo.Saga("order", store, input=Order)
    one = saga.step(name="one")(lambda order: None)
    one.compensate(lambda order: None)
    with pytest.raises(eo.ConfigurationError, match="already"):
        saga.step(name="one")(lambda order: None)
    with pytest.raises(eo.ConfigurationError, match="already"):
        one.compensate(lambda order: None)


def test_an_input_that_cannot_be_frozen_is_refused(store: eo.Store) -> None:
    saga: eo.Saga[Any] = order_saga(store, Shop())
    for wrong, said in ((object(), "cannot be stored"), ("text", "cannot be stored")):
        with pytest.raises(eo.ConfigurationError, match=said):
            saga.run("o-1", wrong)
    with pytest.raises(eo.ConfigurationError, match="over the limit"):
        saga.run("o-1", Order("x" * 300_000))
    with pytest.raises(eo.MissingKey):
        saga.run("", ORDER)
    with pytest.raises(eo.ConfigurationError, match="has no steps"):
        eo.Saga("empty", store, input=Order).run("o-1", ORDER)
    with pytest.raises(eo.ConfigurationError, match="cannot be decoded"):
        eo.Saga("order", store, input=Order | Receipt)  # type: ignore[arg-type]
    assert store.list().records == []


def test_a_store_without_notes_is_refused() -> None:
    saga = order_saga(eo.connect("redis://127.0.0.1:1"), Shop())
    with pytest.raises(eo.ConfigurationError, match="keeps no notes, which sagas need"):
        saga.run("o-1", ORDER)


def test_a_result_that_cannot_be_stored_is_told_to_who_asks_for_it(store: eo.Store) -> None:
    saga = eo.Saga("odd", store, input=Order)

    @saga.step()
    def one(order: Order) -> int:
        return "no int"  # type: ignore[return-value]

    @saga.step()
    def two(order: Order, done: eo.Done) -> str:
        with pytest.raises(eo.ResultNotStored):
            done[one]
        with pytest.raises(eo.ConfigurationError, match="two is not done"):
            done[two]
        with pytest.raises(eo.ConfigurationError, match="is not a step of this saga"):
            done["one"]  # type: ignore[index]
        return "went on"

    assert saga.run("o-1", ORDER)[two] == "went on"
    with pytest.raises(eo.ResultNotStored):
        saga.run("o-1", ORDER)[one]


def test_a_private_store_hides_everything(tmp_path: Any) -> None:
    shop = Shop()
    with eo.connect(f"sqlite:///{tmp_path}/shop.db", private="a secret of some length") as store:
        saga = order_saga(store, shop)
        saga.start("order-of-ann", Order("ann@example.org"))
        shop.at["charge"] = lambda: (_ for _ in ()).throw(eo.InDoubt("?"))
        assert saga.resume() == ResumeCounts(in_doubt=1)
        saga.resolve("order-of-ann", "not_done")
        assert saga.resume() == ResumeCounts(failed=1)
        with pytest.raises(eo.SagaFailed, match="an operator found that it did not happen"):
            saga.run("order-of-ann", Order("ann@example.org"))
    assert shop.effects == ["reserve", "release"]
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"ann@example.org" not in everything
    assert b"order-of-ann" not in everything


def test_steps_compose_with_intents(store: eo.Store) -> None:
    """A saga's own key is what the intent of a step is known by, so a step that runs again sends once."""
    intents = eo.Intents(store, scope="billing")
    sent: list[str] = []
    saga = eo.Saga("order", store, input=Order)

    @intents.operation("stripe", "charge")
    def stripe(intent: eo.Intent[Order]) -> str:
        sent.append(intent.key)
        return "ch_1"

    @saga.step()
    def charge(order: Order) -> str:
        receipt = stripe(order, key=eo.current().key)
        runs.append(1)
        if len(runs) == 1:
            raise KeyboardInterrupt
        return str(receipt)

    runs: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        saga.run("o-1", ORDER)
    assert saga.run("o-1", ORDER)[charge] == "ch_1"
    assert (sent, len(runs)) == (["order/o-1/charge"], 2)


def test_the_diagram_is_mermaid(store: eo.Store) -> None:
    text = order_saga(store, Shop()).diagram()
    assert text.splitlines()[0] == "flowchart LR"
    for line in ('s0["reserve"]', "s0 --> s1", "s2 --> done", "s2 -. fails .-> us1", "us1 --> us0", "us0 --> failed"):
        assert f"    {line}" in text.splitlines(), text
