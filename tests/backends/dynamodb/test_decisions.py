"""What becomes of a record that was read: the answer, and the record to write. No service, no clock."""

from __future__ import annotations

from typing import Any

import pytest

from effectonce.backends.dynamodb.clock import Time
from effectonce.backends.dynamodb.decisions import (
    answer_look,
    decide_claim,
    decide_forget,
    decide_remember,
    decide_resolve,
    drop_expired,
)
from effectonce.backends.dynamodb.items import StoredItem
from effectonce.record import Claim, Look, Remember, Resolution

NOW, PAST = 1000, 990
TIME = Time(NOW, PAST)
OWNER, OTHER = b"o" * 16, b"x" * 16
LEASE, RETENTION = 50, 500


def stored(state: Any = "free", **fields: Any) -> StoredItem:
    known: dict[str, Any] = {
        "created_at": 1, "changed_at": 2, "expires_at": NOW + 1, "owner": OTHER, "token": 7, "attempts": 2,
        "generation": 3, "version": 4,
    }  # fmt: skip
    return StoredItem(scope="scope", key="key", state=state, **{**known, **fields})


def claim(**options: Any) -> Claim:
    return Claim("scope", "key", OWNER, LEASE, RETENTION, **options)


def decided(op: Claim, record: StoredItem | None) -> tuple[Any, Any]:
    answer, new = decide_claim(op, record, TIME)
    return answer, new


@pytest.mark.parametrize(("expires_at", "is_kept"), [(PAST, False), (PAST + 1, True), (None, True)])
def test_a_record_is_kept_until_it_has_surely_expired(expires_at: int | None, is_kept: bool) -> None:
    record = stored(expires_at=expires_at)
    assert (drop_expired(record, PAST) is record) is is_kept
    assert drop_expired(None, PAST) is None


def test_a_look_at_nothing_is_absent() -> None:
    assert answer_look(Look("scope", "key"), None, TIME).kind == "absent"
    assert answer_look(Look("scope", "key"), stored("done", result=b"r"), TIME).kind == "done"


# -- claims


def test_a_first_claim_makes_a_record() -> None:
    answer, new = decided(claim(), None)
    assert (answer.kind, answer.token, answer.attempts, answer.generation) == ("claimed", NOW, 1, 0)
    assert (new.state, new.owner, new.token, new.attempts) == ("claimed", OWNER, NOW, 1)
    assert (new.created_at, new.changed_at) == (NOW, NOW)
    assert (new.lease_until, new.expires_at) == (NOW + LEASE, NOW + LEASE + RETENTION)


@pytest.mark.parametrize(("token", "next_token"), [(7, NOW), (NOW, NOW + 1), (NOW + 60, NOW + 61)])
def test_a_token_is_above_every_earlier_one_even_of_an_expired_record(token: int, next_token: int) -> None:
    for record in (stored(token=token), stored("done", token=token, expires_at=PAST)):
        answer, new = decided(claim(), record)
        assert answer.token == new.token == next_token


def test_a_claim_goes_on_with_what_is_known_about_the_record() -> None:
    record = stored(error=b"e", result=b"r", fingerprint=b"f" * 33)
    answer, new = decided(claim(), record)
    assert (answer.attempts, answer.generation, answer.error, answer.lapsed) == (3, 3, b"e", False)
    assert (new.created_at, new.result, new.fingerprint, new.lapsed) == (1, None, b"f" * 33, False)


def test_a_lapsed_lease_is_taken_over_and_says_so() -> None:
    answer, new = decided(claim(), stored("claimed", lease_until=PAST))
    assert (answer.kind, answer.lapsed, new.lapsed) == ("claimed", True, True)
    answer, new = decided(claim(), stored("claimed", lease_until=PAST + 1))
    assert (answer.kind, new) == ("in_progress", None)


def test_a_claim_that_may_end_in_doubt_never_expires() -> None:
    _, new = decided(claim(doubt_on_lapse=True), None)
    assert (new.doubt_on_lapse, new.expires_at) == (True, None)


def test_a_lapsed_claim_with_doubt_moves_to_in_doubt_once() -> None:
    lapsed = stored("claimed", lease_until=PAST, doubt_on_lapse=True, expires_at=None)
    answer, new = decided(claim(), lapsed)
    assert answer.kind == "in_doubt"
    assert (new.state, new.changed_at, new.lease_until, new.owner, new.token) == ("in_doubt", NOW, None, OTHER, 7)
    answer, new = decided(claim(), stored("in_doubt", expires_at=None))
    assert (answer.kind, new) == ("in_doubt", None)


@pytest.mark.parametrize(
    ("max_attempts", "attempts", "is_exhausted"), [(0, 9, False), (3, 2, False), (3, 3, True), (3, 4, True)]
)
def test_attempts_are_used_up_at_their_limit(max_attempts: int, attempts: int, is_exhausted: bool) -> None:
    record = stored(attempts=attempts, result=b"r")
    answer, new = decided(claim(max_attempts=max_attempts), record)
    if not is_exhausted:
        assert (answer.kind, answer.attempts) == ("claimed", attempts + 1)
        return
    assert (answer.kind, answer.token, answer.attempts, answer.generation) == ("exhausted", 7, attempts, 3)
    assert (new.state, new.error, new.result, new.lease_until) == ("failed", answer.error, None, None)
    assert (new.changed_at, new.expires_at) == (NOW, NOW + RETENTION)


def test_what_is_finished_is_answered_and_left_as_it_is() -> None:
    answer, new = decided(claim(), stored("done", result=b"r"))
    assert (answer.kind, answer.result, new) == ("done", b"r", None)


def test_a_repeated_claim_of_its_owner_has_the_same_token() -> None:
    answer, new = decided(claim(), stored("claimed", owner=OWNER, lease_until=PAST))
    assert (answer.kind, answer.token, answer.attempts, new) == ("claimed", 7, 2, None)


# -- successes of the seen-set


def test_a_success_is_remembered_unless_a_claim_or_a_doubt_stands_there() -> None:
    op = Remember("scope", "key", RETENTION, result=b"r")
    reply, new = decide_remember(op, None, TIME)
    assert (reply, new.state, new.token, new.result) == (True, "done", NOW, b"r")  # type: ignore[union-attr]
    assert (new.changed_at, new.expires_at) == (NOW, NOW + RETENTION)  # type: ignore[union-attr]
    reply, new = decide_remember(op, stored(error=b"e", doubt_on_lapse=True), TIME)
    assert reply is True
    assert new is not None
    assert (new.owner, new.error, new.doubt_on_lapse, new.lease_until, new.created_at) == (b"", None, False, None, 1)
    assert decide_remember(op, stored("done"), TIME) == (True, None)
    assert decide_remember(op, stored("claimed", lease_until=NOW), TIME) == (False, None)
    assert decide_remember(op, stored("in_doubt"), TIME) == (False, None)


# -- operators


def test_a_record_that_is_forgotten_is_free_in_a_new_generation() -> None:
    reply, new = decide_forget(RETENTION, stored("done", result=b"r", error=b"e", fingerprint=b"f"), TIME)
    assert reply is True
    assert new is not None
    assert (new.state, new.owner, new.token, new.attempts, new.generation) == ("free", b"", NOW, 0, 4)
    assert (new.result, new.error, new.fingerprint, new.lease_until) == (None, None, None, None)
    assert (new.changed_at, new.expires_at) == (NOW, NOW + RETENTION)
    assert decide_forget(RETENTION, None, TIME) == (False, None)
    assert decide_forget(RETENTION, stored(expires_at=PAST), TIME) == (False, None)


@pytest.mark.parametrize(
    "record",
    [None, stored(), stored("done"), stored("claimed", lease_until=NOW), stored("in_doubt", expires_at=PAST)],
    ids=["absent", "released", "done", "claimed", "expired"],
)
def test_only_what_is_in_doubt_is_resolved(record: StoredItem | None) -> None:
    assert decide_resolve(Resolution(state="done", retention_us=RETENTION), record, TIME) == (False, None)


@pytest.mark.parametrize(
    "record",
    [stored("in_doubt", expires_at=None), stored("claimed", lease_until=PAST, doubt_on_lapse=True, expires_at=None)],
    ids=["in doubt", "lapsed"],
)
@pytest.mark.parametrize(("state", "attempts", "generation"), [("done", 2, 3), ("failed", 2, 3), ("free", 0, 4)])
def test_a_doubt_is_resolved_by_an_outcome_or_by_another_run(
    record: StoredItem, state: Any, attempts: int, generation: int
) -> None:
    resolution = Resolution(state=state, retention_us=RETENTION, result=b"r", error=b"e")
    reply, new = decide_resolve(resolution, record, TIME)
    assert reply is True
    assert new is not None
    assert (new.state, new.attempts, new.generation, new.token, new.owner) == (state, attempts, generation, NOW, b"")
    assert (new.result, new.error) == ((None, None) if state == "free" else (b"r", b"e"))
    assert (new.lease_until, new.expires_at) == (None, NOW + RETENTION)
