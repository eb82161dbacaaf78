"""What the buttons do: decided, unparked, redriven; once, and with a name in the audit log."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.dashboard.access import Access
from effectonce.dashboard.app import make_app
from effectonce.dashboard.pages import dead_letters
from effectonce.dashboard.sources import Sources
from tests.dashboard.conftest import Visitor
from tests.dashboard.serving import OPERATOR
from tests.dashboard.world import AUDIT_ENTRIES, World

INTENT = "intents/billing/twilio/sms"
SAGA = "saga/order-fulfilment"


def audit_log(own: World) -> list[tuple[str, str, str, str]]:
    """The audit log, oldest first: action, target, outcome, who."""
    entries = [(entry.action, entry.target, entry.outcome, entry.by) for entry in reversed(own.audit.recent(50))]
    return entries[len(AUDIT_ENTRIES) :]


def record(own: World, scope: str, key: str) -> Any:
    stored = own.sources().store.get(scope, key)
    assert stored is not None
    return stored


# -- in doubt


@pytest.mark.parametrize(("word", "state"), [("done", "done"), ("retry", "free"), ("abandon", "failed")])
def test_a_guarded_call_in_doubt_is_decided(own: World, hand: Visitor, word: str, state: str) -> None:
    answer = hand.act(
        "/in-doubt/resolve", scope="charge-card", key="pay_doubtful", outcome=word, result='{"paid": true}'
    )
    assert answer.status_code == 303
    after = record(own, "charge-card", "pay_doubtful")
    assert after.state == state
    assert after.result == (b'1{"paid":true}' if word == "done" else None)
    who = "ada (operator, dashboard)"
    target = "charge-card pay_doubtful"
    assert audit_log(own) == [("records resolve", target, "asked", who), ("records resolve", target, "done", who)]
    assert who in hand.get("/record?scope=charge-card&key=pay_doubtful").text, "the timeline names who decided"


def test_a_second_decision_is_refused_and_audited(own: World, hand: Visitor) -> None:
    fields = {"scope": "charge-card", "key": "pay_doubtful", "outcome": "abandon"}
    hand.act("/in-doubt/resolve", **fields)
    again = hand.act("/in-doubt/resolve", **{**fields, "outcome": "retry"})
    assert again.status_code == 409
    assert record(own, "charge-card", "pay_doubtful").state == "failed"
    assert audit_log(own)[-1][2].startswith("failed: [not-in-doubt]")


@pytest.mark.parametrize(
    "fields",
    [
        {"outcome": "maybe"},
        {"outcome": ""},
        {"outcome": "not_done"},
        {"outcome": "done", "result": "{broken"},
    ],
)
def test_an_invalid_decision_changes_nothing(own: World, hand: Visitor, fields: dict[str, str]) -> None:
    answer = hand.act("/in-doubt/resolve", **{"scope": "charge-card", "key": "pay_doubtful", **fields})
    assert answer.status_code == 400
    assert record(own, "charge-card", "pay_doubtful").state == "in_doubt"
    assert audit_log(own) == []


def test_a_record_that_is_gone_cannot_be_decided(hand: Visitor) -> None:
    assert hand.act("/in-doubt/resolve", scope="charge-card", key="never", outcome="done").status_code == 409


def test_an_intent_is_decided_as_its_program_would(own: World, hand: Visitor) -> None:
    key = own.intents.in_doubt()[0].key
    wrong = hand.act("/in-doubt/resolve", scope=INTENT, key=key, outcome="done", result='"not a dict"')
    assert wrong.status_code == 400, "a result of another type would be unreadable to its caller"
    assert record(own, INTENT, key).state == "in_doubt"
    assert (
        hand.act("/in-doubt/resolve", scope=INTENT, key=key, outcome="done", result='{"sid": "SM9"}').status_code == 303
    )
    assert record(own, INTENT, key).result == b'1{"sid":"SM9"}'


def test_a_sagas_step_is_decided_and_the_saga_continues(own: World, hand: Visitor) -> None:
    result = '{"charge": "ch_2", "amount": 4200}'
    answer = hand.act("/in-doubt/resolve", scope=SAGA, key="order-2003", outcome="done", result=result)
    assert answer.headers["location"].startswith("/saga?")
    own.saga.resume()
    assert record(own, SAGA, "order-2003").state == "done"


def test_a_compensation_has_decisions_of_its_own(own: World, hand: Visitor) -> None:
    page = hand.get("/saga?scope=saga%2Forder-fulfilment&key=order-2005").text
    assert "It was undone by hand" in page
    assert "It did not happen" not in page
    assert hand.act("/in-doubt/resolve", scope=SAGA, key="order-2005", outcome="not_done").status_code == 400
    assert hand.act("/in-doubt/resolve", scope=SAGA, key="order-2005", outcome="done").status_code == 303
    own.saga.resume()
    assert record(own, SAGA, "order-2005").state == "failed", "and compensated"


def test_a_saga_whose_program_is_not_known_can_only_be_given_up(own: World) -> None:
    app = make_app(Sources(own.store), Access(operator=OPERATOR, hosts=["testserver"]))
    with Visitor(app, follow_redirects=False) as visitor:
        visitor.enter()
        assert "--saga MODULE:SAGA" in visitor.get("/saga?scope=saga%2Forder-fulfilment&key=order-2003").text
        fields = {"scope": SAGA, "key": "order-2003"}
        assert visitor.act("/in-doubt/resolve", **fields, outcome="done").status_code == 400
        assert visitor.act("/in-doubt/resolve", **fields, outcome="abandon").status_code == 303
    assert record(own, SAGA, "order-2003").state == "failed"


def test_a_saga_is_turned_around(own: World, hand: Visitor) -> None:
    assert hand.act("/in-doubt/resolve", scope=SAGA, key="order-2003", outcome="not_done").status_code == 303
    own.saga.resume()
    assert record(own, SAGA, "order-2003").state == "failed"


# -- the outbox


def test_chosen_messages_are_unparked(own: World, hand: Visitor) -> None:
    assert hand.act("/outbox/unpark", seq=["2"]).status_code == 303
    assert [entry.seq for entry in own.sources().outbox_rows("parked", None).entries] == [5]
    assert "1 unparked" in hand.get("/outbox").text
    assert audit_log(own)[-1] == ("outbox unpark", f"{own.url} outbox", "done", "ada (operator, dashboard)")


def test_unparking_all_must_be_explicit(own: World, hand: Visitor) -> None:
    assert hand.act("/outbox/unpark").status_code == 400
    assert hand.act("/outbox/unpark", seq=["x"]).status_code == 400
    assert hand.act("/outbox/unpark", seq=["2"], all="yes").status_code == 400
    assert len(own.sources().outbox_rows("parked", None).entries) == 2
    assert hand.act("/outbox/unpark", all="yes").status_code == 303
    assert own.sources().outbox_rows("parked", None).entries == []


# -- dead letters


def test_a_dry_run_changes_nothing(own: World, hand: Visitor) -> None:
    page = hand.act("/dead-letters/preview", queue="billing/orders", id=["1", "2"])
    assert page.status_code == 200
    assert "2 of 2 would be sent" in page.text
    assert "runs again, as its next attempt" in page.text
    assert own.sources().dead_letter_queues["billing/orders"].count() == 3
    assert audit_log(own) == []


def test_chosen_dead_letters_are_redriven(own: World, hand: Visitor) -> None:
    page = hand.act("/dead-letters/redrive", queue="billing/orders", id=["1", "3"])
    assert "2 of 2 sent" in page.text
    assert [dead.id for dead in own.sources().dead_letter_queues["billing/orders"].list()] == ["2"]
    assert audit_log(own)[-1][:3] == ("dlq redrive", "orders of billing", "done")


def test_dead_letters_that_are_gone_are_not_sent_twice(own: World, hand: Visitor) -> None:
    hand.act("/dead-letters/redrive", queue="billing/orders", id=["1"])
    again = hand.act("/dead-letters/redrive", queue="billing/orders", id=["1"])
    assert "None of them is here any more" in again.text


def test_two_operators_at_once_start_one_new_generation(own: World, hand: Visitor) -> None:
    fields = {"csrf": hand.csrf(), "queue": "billing/orders", "id": "1", "new_generation": "yes"}
    with ThreadPoolExecutor(4) as people:
        pages = [
            answer.text for answer in people.map(lambda _: hand.post("/dead-letters/redrive", data=fields), range(4))
        ]
    assert sum("1 of 1 sent" in page for page in pages) == 1
    assert sum("None of them is here any more" in page for page in pages) == 3


def test_dead_letters_are_shown_page_by_page(hand: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "PAGE_SIZE", 2)
    (following,) = {link for link in hand.links("/dead-letters", "/dead-letters") if "after=" in link}
    assert "The oldest 2 of 3" in hand.get("/dead-letters").text
    assert [link[-4:] for link in hand.links(following, "/dead-letter")] == ["id=3"]
    hand.act("/dead-letters/redrive", queue="billing/orders", id=["2"])
    assert hand.get(following).status_code == 400, "what it would go on behind is gone"


def test_a_redrive_names_its_queue_and_dead_letters(hand: Visitor) -> None:
    assert hand.act("/dead-letters/redrive", queue="billing/orders").status_code == 400
    assert hand.act("/dead-letters/redrive", queue="unknown/nothing", id=["1"]).status_code == 400
    assert hand.act("/dead-letters/preview", queue="", id=["1"]).status_code == 400


# -- nothing is done that is not written down


def test_without_an_audit_log_nothing_is_done(own: World, hand: Visitor) -> None:
    own.audit.path = str(own.folder / "missing" / "audit.jsonl")
    refused = hand.act("/in-doubt/resolve", scope="charge-card", key="pay_doubtful", outcome="retry")
    assert refused.status_code == 400
    assert record(own, "charge-card", "pay_doubtful").state == "in_doubt"


def test_an_action_without_an_end_is_in_the_timeline(own: World, hand: Visitor) -> None:
    """The process died on the way: an operator must look."""
    own.audit.record("records resolve", "charge-card pay_doubtful", by="grace@desk", outcome="asked", detail="retry")
    assert "no outcome was written" in hand.get("/record?scope=charge-card&key=pay_doubtful").text
    own.audit.record("records resolve", "charge-card pay_doubtful", by="grace@desk", detail="retry")
    page = hand.get("/record?scope=charge-card&key=pay_doubtful").text
    assert "no outcome" not in page
    assert page.count("grace@desk") == 1


def test_an_action_in_another_store_is_shown_with_that_store(own: World, hand: Visitor) -> None:
    """Several stores may share an audit log, and hold the same keys: this record was not resolved."""
    for place in ("redis://staging", own.url):
        own.audit.record("records resolve", "charge-card pay_doubtful", by="cron", detail="done", place=place)
    page = hand.get("/record?scope=charge-card&key=pay_doubtful").text
    assert "done: done (in redis://staging)" in page
    assert page.count("(in ") == 1, "of its own store that goes without saying"
    assert "redis://staging" in hand.get("/audit").text


# -- private stores


@pytest.mark.parametrize("others", [True, False], ids=["beside others", "the first of its scope"])
def test_a_private_record_is_decided_without_its_secret_and_stays_readable(tmp_path: Path, others: bool) -> None:
    """The dashboard was given a URL, and so no secret: what it writes must be what the program can read."""
    url = f"sqlite:///{tmp_path}/private.db"
    with eo.connect(url, private="a secret of the shop's", sweep_every=None) as store:

        @eo.once(store, scope="charge", key="id", on_error="doubt")
        def charge(id: str) -> dict[str, int]:
            if id.startswith("fine"):
                return {"receipt": 1}
            raise TimeoutError

        for key in ("fine", "a", "b") if others else ("a", "b"):
            with suppress(TimeoutError):
                charge(key)
        sources = Sources(eo.connect(url, sweep_every=None))
        hidden = [record.key for record in sources.store.list(state="in_doubt").records]
        app = make_app(sources, Access(operator=OPERATOR, hosts=["testserver"]))
        with Visitor(app, follow_redirects=False) as hand:
            hand.enter()
            fields = {"scope": "charge", "key": hidden[0]}
            refused = hand.act("/in-doubt/resolve", **fields, outcome="done", result='{"receipt": 2}')
            assert refused.status_code == 400
            assert "looks private" in refused.text
            assert hand.act("/in-doubt/resolve", **fields, outcome="done").status_code == 303
            assert hand.act("/in-doubt/resolve", scope="charge", key=hidden[1], outcome="abandon").status_code == 303
        came = set()
        for key in ("a", "b"):
            with pytest.raises((eo.ResultNotStored, eo.PermanentFailure)) as raised:
                charge(key)
            came.add(raised.value.code)
        assert came == {"result-not-stored", "permanent-failure"}


def test_a_hash_as_a_key_is_not_taken_for_a_private_one(tmp_path: Path) -> None:
    with eo.connect(f"sqlite:///{tmp_path}/public.db", sweep_every=None) as store:
        for key in ("0" * 64, "a" * 64):
            with suppress(TimeoutError), eo.block(store, scope="files", key=key, on_error="doubt") as block:
                if block.first and key[0] == "a":
                    raise TimeoutError
                block.result = 1
        events: list[Any] = []
        store.add_hook(events.append)
        store.resolve("files", "a" * 64, "done", result=2, who="ada")
        store.forget("files", "a" * 64)
        assert [(event.kind, event.key, event.detail) for event in events] == [
            ("resolved", "a" * 64, "done by ada"),
            ("forgotten", "a" * 64, ""),
        ]
