"""What an operator may say about an intent in doubt, and what is left of operations that were renamed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import msgspec
import pytest

import effectonce as eo
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent
from effectonce.store import Store
from effectonce.testing import ManualClock
from effectonce.testing.fault_points import Killed


class Receipt(msgspec.Struct):
    id: str
    amount: int = 0


@dataclasses.dataclass
class Parcel:
    number: int


class Pair(NamedTuple):
    first: str
    second: int


def doubted(intents: Intents, returns: Any, joined: bool = False) -> tuple[str, Callable[[], Any], list[str]]:
    """An intent in doubt whose operation gives ``returns``: its id, how it is delivered again, what was sent."""
    sent: list[str] = []

    @intents.operation("ses", "send", without_key="at-most-once", returns=returns)
    def send(intent: Intent[str]) -> Any:
        sent.append(intent.provider_key)
        raise TimeoutError

    def again() -> Any:
        if not joined:
            return send("hello", key="m")
        with send.send("hello", key="m") as there:
            return there.result

    with pytest.raises(eo.InDoubt):
        again()
    (record,) = intents.in_doubt()
    return intents.id_of(record), again, sent


# -- the words


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("word", ["dnoe", "", None, "not_done", ["retry"]])
def test_a_mistyped_word_changes_nothing(store: Store, intents: Intents, word: Any, joined: bool) -> None:
    id, again, sent = doubted(intents, str, joined)
    (before,) = intents.in_doubt()
    with pytest.raises(eo.InvalidOption, match="'done', 'retry' or 'abandon'"):
        intents.resolve(id, word)
    assert intents.in_doubt() == [before]
    with pytest.raises(eo.InDoubt):
        again()
    assert len(sent) == 1


# -- the result


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("returns", "said", "given"),
    [
        (Receipt, {"id": "SM1"}, Receipt("SM1")),
        (Receipt, Receipt("SM1", 7), Receipt("SM1", 7)),
        (Parcel, {"number": 1}, Parcel(1)),
        (Parcel, Parcel(1), Parcel(1)),
        (list[Receipt], [{"id": "SM1"}], [Receipt("SM1")]),
        (Pair, ["a", 1], Pair("a", 1)),
        (str, "SM1", "SM1"),
        (Any, {"id": "SM1"}, {"id": "SM1"}),
        (None, "whatever", None),
    ],
)
def test_a_result_is_said_as_json_or_as_a_value(
    intents: Intents, returns: Any, said: Any, given: Any, joined: bool
) -> None:
    id, again, sent = doubted(intents, returns, joined)
    intents.resolve(id, "done", result=said)
    assert again() == given
    assert len(sent) == 1


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("returns", "said", "told"),
    [
        (Receipt, "SM1", r'Receipt, an object with "id", "amount" \(optional\)'),
        (Receipt, {"id": 7}, r'Receipt, an object with "id"'),
        (Parcel, {}, r'Parcel, an object with "number"'),
        (Pair, {}, r'Pair, a list of "first", "second"'),
        (str, 7, r'a text, in quotes: "ch_1"'),
        (int, "7", "a whole number"),
        (list[int], ["x"], r"which gives list"),
        (Any, (1, 2), "which gives JSON"),
        (str, object(), "a text, in quotes"),
        (str, "x" * 2_000_000, "over the limit"),
    ],
)
def test_a_wrong_result_is_told_what_would_be_one(
    intents: Intents, returns: Any, said: Any, told: str, joined: bool
) -> None:
    id, _, _ = doubted(intents, returns, joined)
    (before,) = intents.in_doubt()
    with pytest.raises(eo.ConfigurationError, match=f"^this is not a result of billing/ses/send.*{told}"):
        intents.resolve(id, "done", result=said)
    assert intents.in_doubt() == [before]


# -- operations that are not known any more


def renamed(store: Store, scope: str = "billing") -> Intents:
    """The same intents after a deploy that gave the operation another name."""
    deployed = Intents(Store(store.runtime.backend, sweep_every=None), scope=scope)

    @deployed.operation("ses", "mail", without_key="at-most-once")
    def mail(intent: Intent[str]) -> str:
        return "sent"

    return deployed


def test_the_doubts_of_a_renamed_operation_are_listed(store: Store, intents: Intents) -> None:
    id, _, _ = doubted(intents, str)
    deployed = renamed(store)
    (record,) = deployed.in_doubt()
    assert (deployed.id_of(record), deployed.log(record).key) == (id, "m")
    assert deployed.orphaned_scopes() == ["intents/billing/ses/send"]
    assert intents.orphaned_scopes() == []
    found = deployed.get(id)
    assert found is not None
    assert found.scope == "intents/billing/ses/send"


def test_they_are_those_of_these_intents_only(store: Store, intents: Intents) -> None:
    """``billing/ses`` has an operation of its own; its records look as if they were of an operation of ``billing``."""
    doubted(Intents(store, scope="billing/ses"), str)
    doubted(Intents(store, scope="shop"), str)
    assert renamed(store).orphaned_scopes() == []
    assert renamed(store, "billing/ses").orphaned_scopes() == ["intents/billing/ses/ses/send"]


def test_names_with_slashes_are_found_as_well(store: Store, intents: Intents) -> None:
    @intents.operation("ses", "mail/of/the/day", without_key="at-most-once")
    def mail(intent: Intent[str]) -> None:
        raise TimeoutError

    with pytest.raises(eo.InDoubt):
        mail("hello", key="m")
    assert renamed(store).orphaned_scopes() == [mail.scope]


def test_what_a_renamed_operation_left_is_told_by_a_check(
    clock: ManualClock, store: Store, intents: Intents, caplog: pytest.LogCaptureFixture
) -> None:
    """Told, not refused: it may be another program with the same scope that has the operation."""
    id, _, _ = doubted(intents, str)
    intents.check("1d")
    assert not caplog.records
    renamed(store).check("1d")
    assert "billing/ses/send left unfinished intents" in caplog.text
    caplog.clear()
    renamed(store).resolve(id, "abandon")
    renamed(store).check("1d")
    assert not [each for each in caplog.records if "not finished" in each.message]


def test_a_check_is_silent_about_what_the_release_before_is_sending(
    clock: ManualClock, store: Store, intents: Intents, caplog: pytest.LogCaptureFixture
) -> None:
    """In a rolling deploy both releases run, and the old one finishes what it has begun: unless its lease has ended."""

    @intents.operation("stripe", "charge", lease="30s")
    def charge(intent: Intent[str]) -> None:
        deployed = renamed(store)
        assert deployed.orphaned_scopes() == [charge.scope]
        deployed.check("1h")
        assert not caplog.records
        clock.advance(30)
        deployed.check("1h")
        raise Killed

    with pytest.raises(Killed):
        charge("hello", key="m")
    assert "billing/stripe/charge left unfinished intents" in caplog.text


def test_what_is_open_of_a_renamed_operation_is_told_as_well(store: Store, intents: Intents) -> None:
    @intents.operation("stripe", "charge")
    def charge(intent: Intent[str]) -> None:
        raise TimeoutError

    with pytest.raises(eo.OutcomeUnknown):
        charge("hello", key="m")
    deployed = renamed(store)
    assert (deployed.in_doubt(), deployed.orphaned_scopes()) == ([], [charge.scope])
    (record,) = store.list().records
    with pytest.raises(eo.NotInDoubt):
        deployed.resolve(record.key, "retry")


def test_a_check_makes_no_store(tmp_path: Any) -> None:
    with eo.connect(f"sqlite:///{tmp_path}/shop.db") as store:
        Intents(store, scope="billing").check("1d")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["done", "abandon"])
def test_a_doubt_of_a_renamed_operation_can_be_decided(store: Store, intents: Intents, word: Any) -> None:
    id, again, sent = doubted(intents, Receipt)
    deployed = renamed(store)
    with pytest.raises(eo.ConfigurationError, match="old name back, or say 'done' or 'abandon'"):
        deployed.resolve(id, "retry")
    deployed.resolve(id, word, result={"id": "SM1"})
    assert (deployed.in_doubt(), deployed.orphaned_scopes()) == ([], [])
    if word == "done":  # the old name is back
        assert again() == Receipt("SM1")
    else:
        with pytest.raises(eo.PermanentFailure):
            again()
    assert len(sent) == 1


def test_one_whose_completion_joins_rows_can_only_be_given_up(store: Store, intents: Intents) -> None:
    id, _, _ = doubted(intents, str, joined=True)
    deployed = renamed(store)
    for word in ("done", "retry"):
        with pytest.raises(eo.ConfigurationError, match="or say 'abandon'; nothing was changed"):
            deployed.resolve(id, word, result="SM1")  # type: ignore[arg-type]
    assert len(deployed.in_doubt()) == 1
    deployed.resolve(id, "abandon")


def test_in_a_private_store_they_are_found_by_their_id() -> None:
    with eo.connect("memory://", private="0" * 32) as store:
        id, _, _ = doubted(Intents(store, scope="billing"), str)
        deployed = Intents(store, scope="billing")
        (record,) = deployed.in_doubt()
        assert record.key != id
        assert deployed.id_of(record) == id
        deployed.resolve(id, "abandon")
        assert deployed.in_doubt() == []


def test_an_operators_decision_is_kept_for_the_retention_of_the_operation(clock: ManualClock, intents: Intents) -> None:
    sent = []

    @intents.operation("ses", "mail", without_key="at-most-once", retention="90d")
    def mail(intent: Intent[str]) -> None:
        sent.append(intent.request)
        raise TimeoutError

    for outcome in ("done", "retry"):
        with pytest.raises(eo.InDoubt):
            mail("hello", key=outcome)
    for record in intents.in_doubt():
        intents.resolve(record.key, "done" if intents.log(record).key == "done" else "retry", result=...)
    clock.advance("60d")
    intents.store.purge()
    with pytest.raises(eo.ResultNotStored) if mail.policy.codec.discards is False else nullcontext():
        mail("hello", key="done")
    assert sent.count("hello") == 2
    assert intents.recover().in_doubt == 1, "what is to be retried waits for it"


def test_every_doubt_is_listed_however_many_others_there_are(intents: Intents, mail: Any) -> None:
    for number in range(7):
        with pytest.raises(eo.InDoubt):
            mail("lost reply", key=f"m{number}")
    assert len(intents.in_doubt(limit=5)) == 5
    assert len(intents.in_doubt()) == 7


def test_an_operators_result_must_be_one(intents: Intents) -> None:
    @intents.operation("ses", "send", without_key="at-most-once")
    def send(intent: Intent[str]) -> int:
        raise TimeoutError

    with pytest.raises(eo.InDoubt):
        send("hello", key="m")
    (record,) = intents.in_doubt()
    with pytest.raises(eo.ConfigurationError, match="not a result of"):
        intents.resolve(record.key, "done", result="ch_1")
    intents.resolve(record.key, "done", result=7)
    assert send("hello", key="m") == 7
