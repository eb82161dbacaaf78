"""Intents over a provider that can be told to misbehave: each rule of the log, and each verdict, by its number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import effectonce as eo
from effectonce.intents import Intent, Intents
from effectonce.providers import Provider, Verdict
from effectonce.store import Store, open_backend
from effectonce.stores.memory import MemoryBackend
from effectonce.testing import ManualClock
from effectonce.testing.lives import Killed


class Payment(msgspec.Struct):
    id: str
    amount: int


class Answer(Exception):
    """An HTTP error as SDKs raise it."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(f"{status} {code}")
        self.http_status, self.code = status, code


class Bank:
    """A provider that keeps keys, as Stripe v1 does: what was executed under a key is not executed again."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.seen: list[str] = []
        self.kept: dict[str, str] = {}
        self.before: Callable[[], None] = lambda: None  # what goes wrong before it executes
        self.after: Callable[[], None] = lambda: None  # and after

    def charge(self, intent: Intent[Payment]) -> str:
        key = intent.headers["Idempotency-Key"]
        self.seen.append(key)
        self.before()
        if key not in self.kept:
            self.charges.append(intent.request.id)
            self.kept[key] = f"ch_{len(self.charges)}"
        self.after()
        return self.kept[key]


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.fixture(params=["memory", "sqlite"])
def clock_and_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ManualClock, Store]]:
    clock = ManualClock()
    if request.param == "memory":
        backend: Any = MemoryBackend(clock=clock)
    else:
        opened: Any = open_backend(f"sqlite:///{tmp_path}/shop.db")
        opened.clock, backend = clock, opened
    with Store(backend, sweep_every=None) as store:
        yield clock, store


@pytest.fixture
def clock(clock_and_store: tuple[ManualClock, Store]) -> ManualClock:
    return clock_and_store[0]


@pytest.fixture
def store(clock_and_store: tuple[ManualClock, Store]) -> Store:
    return clock_and_store[1]


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def intents(store: Store) -> Intents:
    return Intents(store, scope="billing")


@pytest.fixture
def charge(intents: Intents, bank: Bank) -> Any:
    @intents.operation("stripe", "charge")
    def charge(intent: Intent[Payment]) -> str:
        return bank.charge(intent)

    return charge


PAYMENT = Payment("pay_1", 4200)


# -- once


def test_a_duplicate_gets_the_first_ones_result(charge: Any, bank: Bank) -> None:
    first = charge.call(PAYMENT, key="pay_1")
    again = charge.call(PAYMENT, key="pay_1")
    assert (first.value, first.replayed, again.value, again.replayed) == ("ch_1", False, "ch_1", True)
    assert bank.charges == ["pay_1"]


async def test_an_async_operation(intents: Intents, bank: Bank) -> None:
    @intents.operation("stripe", "charge")
    async def charge(intent: Intent[Payment]) -> str:
        await asyncio.sleep(0)
        return bank.charge(intent)

    assert [await charge(PAYMENT, key="pay_1") for _ in range(2)] == ["ch_1", "ch_1"]
    assert bank.charges == ["pay_1"]


def test_another_request_under_the_same_key_is_refused(charge: Any, bank: Bank) -> None:
    """F21."""
    charge(PAYMENT, key="pay_1")
    with pytest.raises(eo.PayloadMismatch):
        charge(Payment("pay_1", 9999), key="pay_1")
    assert len(bank.seen) == 1


def test_keys_differ_by_account_step_and_scope(intents: Intents, store: Store, charge: Any, bank: Bank) -> None:
    """Rule 2: one key per effect, and two tenants never share one (F24)."""
    other = Intents(store, scope="other")

    @other.operation("stripe", "charge")
    def elsewhere(intent: Intent[Payment]) -> str:
        return bank.charge(intent)

    charge(PAYMENT, key="k")
    charge(PAYMENT, key="k", account="acme")
    charge(PAYMENT, key="k", step="fee")
    elsewhere(PAYMENT, key="k")
    assert len(set(bank.seen)) == 4
    assert {len(key) for key in bank.seen} == {36}


# -- rule 1: what is committed before each send


def test_the_frozen_request_and_the_stamp_are_committed_before_it_is_sent(
    intents: Intents, store: Store, charge: Any, bank: Bank
) -> None:
    """Rule 1."""
    found: list[tuple[bytes, int, bool]] = []

    def look() -> None:
        (record,) = store.list(scope=charge.scope, unfinished=True).records
        log = intents.log(record)
        found.append((log.request, log.send_count, log.first_sent_at > 0))

    bank.before = look
    charge(PAYMENT, key="pay_1")
    assert found == [(b'1{"id":"pay_1","amount":4200}', 1, True)]


def test_a_resend_uses_the_request_as_it_was_frozen(clock: ManualClock, store: Store, bank: Bank) -> None:
    """A deploy in between changes how requests are made; what was written down goes out all the same."""
    sent: list[Any] = []
    for version in range(2):
        intents = Intents(Store(store.engine.backend, sweep_every=None), scope="billing")

        @intents.operation("stripe", "charge")
        def charge(intent: Intent[Any]) -> str:
            sent.append((intent.request, intent.provider_key, intent.send_count))
            raise TimeoutError

        if version == 0:
            with pytest.raises(eo.OutcomeUnknown):
                charge({"amount": 1}, key="k")
        else:
            clock.advance("2m")
            assert intents.recover().later == 1
    assert [request for request, _, _ in sent] == [{"amount": 1}, {"amount": 1}]
    assert sent[0][1] == sent[1][1]
    assert [count for *_, count in sent] == [1, 2]


# -- the four verdicts


@pytest.mark.parametrize("error", [TimeoutError("read"), ConnectionResetError(), Answer(500), Answer(409)])
def test_unknown_is_sent_again_with_the_same_key(charge: Any, bank: Bank, error: Exception) -> None:
    """F03, mode K; rule 3: the effect happened, the reply did not come."""
    bank.after = raising(error)
    with pytest.raises(eo.OutcomeUnknown) as told:
        charge(PAYMENT, key="pay_1")
    assert told.value.__cause__ is error
    bank.after = lambda: None
    assert charge(PAYMENT, key="pay_1") == "ch_1"
    assert bank.charges == ["pay_1"]
    assert len(set(bank.seen)) == 1


def test_a_definitive_failure_is_stored_and_raised_again(charge: Any, bank: Bank) -> None:
    bank.before = raising(Answer(402, "card_declined"))
    with pytest.raises(Answer):
        charge(PAYMENT, key="pay_1")
    bank.before = lambda: None
    with pytest.raises(eo.PermanentFailure, match="card_declined"):
        charge(PAYMENT, key="pay_1")
    assert bank.charges == []


@pytest.mark.parametrize("status", [401, 429])
def test_turned_away_on_a_first_send_is_not_executed(intents: Intents, charge: Any, bank: Bank, status: int) -> None:
    """Rule 4."""
    bank.before = raising(Answer(status))
    with pytest.raises(eo.NotExecuted):
        charge(PAYMENT, key="pay_1")
    (record,) = intents.store.list(scope=charge.scope, unfinished=True).records
    assert intents.log(record).send_count == 0
    bank.before = lambda: None
    assert charge(PAYMENT, key="pay_1") == "ch_1"


@pytest.mark.parametrize("status", [401, 429])
def test_turned_away_on_a_resend_says_nothing_about_the_first(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank, status: int
) -> None:
    """Rule 4: the first may have happened, so after the window it is in doubt and not sent as new."""
    bank.after = raising(TimeoutError())
    with pytest.raises(eo.OutcomeUnknown):
        charge(PAYMENT, key="pay_1")
    bank.before, bank.after = raising(Answer(status)), lambda: None
    with pytest.raises(eo.OutcomeUnknown):
        charge(PAYMENT, key="pay_1")
    clock.advance("2d")
    with pytest.raises(eo.InDoubt):
        charge(PAYMENT, key="pay_1")
    assert bank.charges == ["pay_1"]
    assert len(bank.seen) == 2


def test_what_never_left_is_not_executed(charge: Any, bank: Bank) -> None:
    bank.before = raising(httpx.ConnectError("refused"))
    with pytest.raises(eo.NotExecuted):
        charge(PAYMENT, key="pay_1")


def test_a_refused_connection_to_something_else_says_nothing(charge: Any, bank: Bank) -> None:
    """An audit database that is down, after the charge."""
    bank.after = raising(ConnectionRefusedError())
    with pytest.raises(eo.OutcomeUnknown):
        charge(PAYMENT, key="pay_1")


def test_the_users_classifier_comes_first(intents: Intents, charge: Any, bank: Bank) -> None:
    @intents.classify("stripe")
    def verdict(outcome: Any) -> Verdict | None:
        return Verdict.failure("ours") if isinstance(outcome, TimeoutError) else None

    bank.after = raising(TimeoutError())
    with pytest.raises(TimeoutError):
        charge(PAYMENT, key="pay_1")
    with pytest.raises(eo.PermanentFailure):
        charge(PAYMENT, key="pay_1")


# -- rules 5 and 6: the deadline, and the reconciler


def unknown(charge: Any, bank: Bank) -> None:
    bank.after = raising(TimeoutError())
    with pytest.raises(eo.OutcomeUnknown):
        charge(PAYMENT, key="pay_1")
    bank.after = lambda: None


def test_after_the_window_it_is_in_doubt_and_never_sent(clock: ManualClock, charge: Any, bank: Bank) -> None:
    """Rule 5: neither a resend nor a fresh key."""
    unknown(charge, bank)
    bank.kept.clear()  # the provider has forgotten
    clock.advance("1436m")
    for _ in range(2):
        with pytest.raises(eo.InDoubt):
            charge(PAYMENT, key="pay_1")
    assert bank.charges == ["pay_1"]


def test_inside_the_window_it_is_sent_until_the_margin(clock: ManualClock, charge: Any, bank: Bank) -> None:
    unknown(charge, bank)
    clock.advance("1434m")
    assert charge(PAYMENT, key="pay_1") == "ch_1"


def test_a_reconciler_finds_it(clock: ManualClock, intents: Intents, charge: Any, bank: Bank) -> None:
    """Rule 6: found, so it is completed."""

    @intents.reconcile("stripe")
    def look_up(intent: Intent[Payment]) -> Verdict:
        return Verdict.success(bank.kept[intent.provider_key])

    unknown(charge, bank)
    clock.advance("2d")
    assert charge(PAYMENT, key="pay_1") == "ch_1"
    assert len(bank.seen) == 1


def test_proven_absent_it_begins_anew_under_another_key(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    """Rule 6."""

    @intents.reconcile("stripe")
    def look_up(intent: Intent[Payment]) -> Verdict:
        return Verdict.not_executed("not in the list")

    bank.before = raising(TimeoutError())
    with pytest.raises(eo.OutcomeUnknown):
        charge(PAYMENT, key="pay_1")
    bank.before = lambda: None
    clock.advance("2d")
    assert charge(PAYMENT, key="pay_1") == "ch_1"
    assert len(set(bank.seen)) == 2


def test_a_reconciler_that_does_not_know_leaves_it_in_doubt(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    @intents.reconcile("stripe")
    def look_up(intent: Intent[Payment]) -> Verdict:
        return Verdict.unknown("their search is down")

    unknown(charge, bank)
    clock.advance("2d")
    with pytest.raises(eo.InDoubt, match="their search is down"):
        charge(PAYMENT, key="pay_1")


def test_a_redelivery_longer_than_the_window_needs_a_reconciler(intents: Intents, charge: Any) -> None:
    """Rule 7."""
    intents.check("12h")
    with pytest.raises(eo.ConfigurationError, match="add a reconciler"):
        intents.check("14d")
    intents.reconcile("stripe")(lambda intent: Verdict.unknown("?"))
    intents.check("14d")


# -- mode I


@pytest.fixture
def mail(intents: Intents) -> Any:
    sent: list[str] = []

    @intents.operation("ses", "send", keyless="at-most-once")
    def mail(intent: Intent[str]) -> None:
        sent.append(intent.request)
        if intent.request == "lost reply":
            raise TimeoutError
        if intent.request == "killed":
            raise Killed

    mail.sent = sent  # type: ignore[attr-defined]
    return mail


def test_without_keys_an_unknown_outcome_is_in_doubt_at_once(intents: Intents, mail: Any) -> None:
    """F03, mode I: never a blind rerun."""
    for _ in range(2):
        with pytest.raises(eo.InDoubt):
            mail("lost reply", key="m1")
    assert mail.sent == ["lost reply"]
    assert len(intents.in_doubt()) == 1


def test_without_keys_a_process_that_died_leaves_it_in_doubt(clock: ManualClock, store: Store, mail: Any) -> None:
    store.engine.after_fork()  # from here on nothing that this process held is settled by it
    with pytest.raises(BaseException):  # noqa: B017
        mail("killed", key="m1")
    clock.advance("2m")
    with pytest.raises(eo.InDoubt):
        mail("killed", key="m1")
    assert mail.sent == ["killed"]


def test_at_least_once_is_a_choice(intents: Intents) -> None:
    """Rule 8."""
    sent = []

    @intents.operation("twilio", "message", keyless="at-least-once")
    def message(intent: Intent[str]) -> None:
        sent.append(intent.id)
        if len(sent) == 1:
            raise TimeoutError

    with pytest.raises(eo.OutcomeUnknown):
        message("hello", key="m1")
    message("hello", key="m1")
    assert len(sent) == 2
    assert len(set(sent)) == 1, "the intent's id goes into tags, the same each time"


# -- recovery and people


def test_recovery_goes_on_with_what_a_dead_process_left(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    unknown(charge, bank)
    assert intents.recover().later == 0, "it is too fresh: its own delivery may come again"
    clock.advance("2m")
    assert intents.recover().done == 1
    assert charge.call(PAYMENT, key="pay_1").replayed
    assert bank.charges == ["pay_1"]
    assert intents.recover() == type(intents.recover())()


def test_an_unknown_intent_is_kept_until_someone_knows(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    """Retention is of what is finished: what is not is never silently dropped."""
    unknown(charge, bank)
    clock.advance("200d")
    intents.store.purge()
    assert intents.recover().in_doubt == 1
    assert len(intents.in_doubt()) == 1


def test_an_operators_retry_goes_out_under_a_new_key(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    unknown(charge, bank)
    clock.advance("2d")
    intents.recover()
    (record,) = intents.in_doubt()
    intents.resolve(record.key, "retry")
    clock.advance("2m")
    assert intents.recover().done == 1
    assert len(set(bank.seen)) == 2


def test_an_operator_says_what_came_of_it(clock: ManualClock, intents: Intents, charge: Any, bank: Bank) -> None:
    unknown(charge, bank)
    clock.advance("2d")
    intents.recover()
    (record,) = intents.in_doubt()
    intents.resolve(record.key, "done", result="ch_1")
    assert charge(PAYMENT, key="pay_1") == "ch_1"
    with pytest.raises(eo.NotInDoubt):
        intents.resolve(record.key, "retry")
    with pytest.raises(eo.NotInDoubt, match="no intent"):
        intents.resolve("nothing", "retry")


# -- what is refused


@pytest.mark.parametrize(
    ("provider", "options", "said"),
    [
        ("nobody", {}, "no provider is known by"),
        ("ses", {}, "keeps no keys: choose keyless="),
        ("stripe", {"keyless": "at-most-once"}, "keeps keys"),
        ("square", {}, "does not say how long"),
        ("paypal", {}, "does not say how long"),
        ("stripe", {"margin": "25h"}, "leaves nothing"),
        (Provider(name="tiny", limit=20, window=1), {}, "takes keys of 20"),
    ],
)
def test_an_operation_that_cannot_keep_its_promise_is_refused(
    intents: Intents, provider: Any, options: Any, said: str
) -> None:
    with pytest.raises(eo.ConfigurationError, match=said):
        intents.operation(provider, "anything", **options)


def test_a_request_that_cannot_be_frozen_is_refused_before_anything_happens(
    intents: Intents, charge: Any, bank: Bank
) -> None:
    with pytest.raises(eo.ConfigurationError, match="cannot be written down"):
        charge(object(), key="k")
    with pytest.raises(eo.ConfigurationError, match="over the limit"):
        charge(Payment("x" * 300_000, 1), key="k")
    with pytest.raises(eo.MissingKey):
        charge(PAYMENT, key="")
    assert bank.seen == []
    assert intents.store.list(scope=charge.scope).records == []


def test_two_operations_of_one_name_are_refused(intents: Intents, charge: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match="already"):
        intents.operation("stripe", "charge")(lambda intent: None)


# -- what a hostile reader found


def test_an_operators_word_is_kept_as_long_as_the_operation_says(clock: ManualClock, intents: Intents) -> None:
    sent = []

    @intents.operation("ses", "mail", keyless="at-most-once", retention="90d")
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
    with pytest.raises(eo.ResultNotStored) if mail._policy.codec.discards is False else nullcontext():
        mail("hello", key="done")
    assert sent.count("hello") == 2
    assert intents.recover().in_doubt == 1, "what is to be retried waits for it"


def test_every_doubt_is_listed_however_many_others_there_are(intents: Intents, mail: Any) -> None:
    for number in range(7):
        with pytest.raises(eo.InDoubt):
            mail("lost reply", key=f"m{number}")
    assert len(intents.in_doubt(limit=5)) == 5
    assert len(intents.in_doubt()) == 7


@pytest.mark.parametrize("request_", [{"rate": float("nan")}, (1, 2), {5: "five"}])
def test_a_request_that_would_change_by_being_frozen_is_refused(intents: Intents, request_: Any) -> None:
    @intents.operation("stripe", "untyped")
    def untyped(intent: Intent[Any]) -> None:
        raise AssertionError("nothing may be sent")

    with pytest.raises(eo.ConfigurationError, match="cannot be written down"):
        untyped(request_, key="k")


def test_the_order_of_a_requests_members_is_no_other_request(intents: Intents) -> None:
    """F22."""

    @intents.operation("stripe", "untyped")
    def untyped(intent: Intent[Any]) -> int:
        return 1

    untyped({"a": 1, "b": 2}, key="k")
    assert untyped.call({"b": 2, "a": 1}, key="k").replayed


def test_a_refusal_of_a_keyless_resend_does_not_settle_the_first(intents: Intents) -> None:
    answers: list[Exception] = [TimeoutError(), Answer(400)]

    @intents.operation("twilio", "message", keyless="at-least-once")
    def message(intent: Intent[str]) -> None:
        raise answers.pop(0)

    for _ in range(2):
        with pytest.raises(eo.OutcomeUnknown):
            message("hello", key="m")


def test_one_unreadable_record_does_not_keep_the_others_waiting(
    clock: ManualClock, store: Store, intents: Intents, charge: Any, bank: Bank
) -> None:
    bank.after = raising(TimeoutError())
    for number in range(3):
        with pytest.raises(eo.OutcomeUnknown):
            charge(PAYMENT, key=f"p{number}")
    bank.after = lambda: None
    log = intents.log

    def unreadable(record: Any) -> Any:
        if log(record).key == "p0":
            raise eo.CorruptRecord("a row that somebody edited")
        return log(record)

    intents.log = unreadable  # type: ignore[method-assign]
    clock.advance("2m")
    assert (intents.recover().done, intents.recover().broken) == (2, 1)


def test_a_reconciler_of_another_colour_is_refused_before_anything_happens(
    intents: Intents, charge: Any, bank: Bank
) -> None:
    @intents.reconcile("stripe")
    async def look_up(intent: Intent[Payment]) -> Verdict:
        return Verdict.unknown("")

    with pytest.raises(eo.WrongColour):
        charge(PAYMENT, key="k")
    with pytest.raises(eo.WrongColour):
        intents.check("1h")
    assert bank.seen == []


def test_a_retention_shorter_than_the_redelivery_is_refused(intents: Intents) -> None:
    """F25."""

    @intents.operation("ses", "send", keyless="at-most-once", retention="1h")
    def send(intent: Intent[str]) -> None: ...

    with pytest.raises(eo.ConfigurationError, match="lengthen retention="):
        intents.check("14d")


async def test_a_coroutine_that_is_awaited_late_is_sent(clock: ManualClock, intents: Intents) -> None:
    sent = []

    @intents.operation("ses", "send", keyless="at-most-once")
    async def send(intent: Intent[str]) -> None:
        sent.append(intent.request)

    later = send("hello", key="m")
    clock.advance("31s")
    await later
    assert sent == ["hello"]


def test_without_keys_a_reconciler_is_asked_before_it_is_in_doubt(intents: Intents, mail: Any) -> None:
    @intents.reconcile("ses")
    def look_up(intent: Intent[str]) -> Verdict:
        return Verdict.success(None)

    with pytest.raises(eo.OutcomeUnknown):
        mail("lost reply", key="m1")
    mail("lost reply", key="m1")
    assert mail.sent == ["lost reply"]


def test_an_operators_result_must_be_one(intents: Intents) -> None:
    @intents.operation("ses", "send", keyless="at-most-once")
    def send(intent: Intent[str]) -> int:
        raise TimeoutError

    with pytest.raises(eo.InDoubt):
        send("hello", key="m")
    (record,) = intents.in_doubt()
    with pytest.raises(eo.ConfigurationError, match="no result of"):
        intents.resolve(record.key, "done", result="ch_1")
    intents.resolve(record.key, "done", result=7)
    assert send("hello", key="m") == 7
