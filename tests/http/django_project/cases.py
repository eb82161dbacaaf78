"""The app in a project: run by `tests.http.test_django_app` in a process of its own, since Django loads apps once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import Client
from django.test.utils import override_settings
from django.urls import reverse

import effectonce as eo
from effectonce.integrations.django import get_store
from effectonce.integrations.django.admin import encode_id
from effectonce.telemetry.audit_log import AuditLog

from .urls import charges

LIST = "/admin/effectonce/indoubtrecord/"
ODD_KEY = "a/b?c#d %41 é <b>\n"


@pytest.fixture(scope="session", autouse=True)
def migrated() -> None:
    call_command("migrate", verbosity=0)


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditLog]:
    """The audit log of the settings."""
    path = tmp_path / "audit.jsonl"
    with override_settings(EFFECTONCE={**settings.EFFECTONCE, "AUDIT": str(path)}):
        yield AuditLog(path)


def make_doubt(key: str, scope: str = "charge-card", store: eo.Store | None = None) -> str:
    """Let a run end in doubt. Returns the address of its record's page."""
    with pytest.raises(ZeroDivisionError), eo.block(store or get_store(), scope=scope, key=key, on_error="doubt"):
        raise ZeroDivisionError
    return page_of(key, scope)


def page_of(key: str, scope: str = "charge-card") -> str:
    return reverse("admin:effectonce_indoubtrecord_change", args=(quote(encode_id(scope, key)),))


def login(*permissions: str, name: str = "ada", staff: bool = True) -> Client:
    user, _ = User.objects.get_or_create(username=name, is_staff=staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def operator() -> Client:
    return login("resolve_indoubtrecord")


def state_of(key: str, scope: str = "charge-card") -> str:
    record = get_store().get(scope, key)
    assert record is not None
    return record.state


# -- who may look, and who may decide


def test_the_permissions_are_there() -> None:
    codenames = Permission.objects.filter(content_type__app_label="effectonce").values_list("codename", flat=True)
    assert sorted(codenames) == ["resolve_indoubtrecord", "view_indoubtrecord"]


def test_without_a_login_nothing_is_shown() -> None:
    page = make_doubt("k-anonymous")
    for client in (Client(), login("resolve_indoubtrecord", name="customer", staff=False)):
        for address in (LIST, page):
            answer = client.get(address)
            assert (answer.status_code, answer["Location"].split("?")[0]) == (302, "/admin/login/")


def test_staff_without_a_permission_see_nothing() -> None:
    page, client = make_doubt("k-nobody"), login(name="eve")
    assert [client.get(address).status_code for address in (LIST, page)] == [403, 403]
    assert client.post(page, {"outcome": "done"}).status_code == 403
    assert "Records in doubt" not in client.get("/admin/").content.decode()


def test_viewers_see_records_and_cannot_decide() -> None:
    page, client = make_doubt("k-viewer"), login("view_indoubtrecord", name="grace")
    assert "k-viewer" in client.get(LIST).content.decode()
    assert "Decide" not in client.get(page).content.decode()
    assert client.post(page, {"outcome": "done"}).status_code == 403
    assert state_of("k-viewer") == "in_doubt"


def test_a_decision_from_another_site_is_refused(operator: Client) -> None:
    page = make_doubt("k-csrf")
    operator.handler.enforce_csrf_checks = True
    assert operator.post(page, {"outcome": "done"}).status_code == 403
    assert state_of("k-csrf") == "in_doubt"


# -- the list


def test_the_list_shows_what_is_in_doubt_with_a_page_for_each(operator: Client) -> None:
    pages = [make_doubt(key) for key in ("k-list", ODD_KEY)]
    text = operator.get(LIST).content.decode()
    assert "ZeroDivisionError" in text
    assert "in make_doubt" in operator.get(pages[0]).content.decode()
    assert all(f'href="{page}"' in text for page in pages)
    assert "<b>" not in text, "a key is text, not markup"
    assert "Records in doubt" in operator.get("/admin/").content.decode()
    assert "charge-card" in operator.get(pages[1]).content.decode()
    assert "k-list" not in operator.get(LIST, {"scope": "another"}).content.decode()


def test_the_list_goes_on_on_a_next_page(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effectonce.integrations.django.admin.PAGE_SIZE", 2)
    for number in range(3):
        make_doubt(f"k-{number}", scope="pages")
    response = operator.get(LIST, {"scope": "pages"})
    cursor = response.context_data["cursor"]
    assert "Next page" in response.content.decode()
    more = operator.get(LIST, {"scope": "pages", "cursor": cursor})
    keys = [row["key"] for each in (response, more) for row in each.context_data["rows"]]
    assert sorted(keys) == ["k-0", "k-1", "k-2"]


# -- decisions


@pytest.mark.parametrize(("outcome", "state"), [("done", "done"), ("retry", "free"), ("abandon", "failed")])
def test_a_decision_is_applied_and_written_down(operator: Client, audit: AuditLog, outcome: str, state: str) -> None:
    key = f"k-{outcome}-{ODD_KEY}"
    page = make_doubt(key)
    events: list[eo.Event] = []
    get_store().add_hook(events.append)
    answer = operator.post(page, {"outcome": outcome}, follow=True)
    assert answer.redirect_chain == [(LIST, 302)]
    assert f": {outcome}" in " ".join(str(message) for message in answer.context["messages"]), "the operator is told"
    assert state_of(key) == state
    assert [event.detail for event in events if event.kind == "resolved"] == [f"{outcome} by ada"]
    entries = [(entry.by, entry.action, entry.detail, entry.outcome) for entry in audit.recent()]
    assert entries == [("ada", "records resolve", outcome, "done"), ("ada", "records resolve", outcome, "asked")]
    history = LogEntry.objects.filter(object_id=encode_id("charge-card", key)).order_by("pk")
    assert [(entry.user.username, entry.change_message) for entry in history] == [
        ("ada", f"asked for {outcome}"),
        ("ada", f"resolved: {outcome}"),
    ]
    assert history[0].get_admin_url() == page
    assert "ada" in operator.get(page).content.decode()


def test_a_result_goes_to_the_duplicates(operator: Client) -> None:
    operator.post(make_doubt("k-result"), {"outcome": "done", "result": '{"charge": "ch_1"}'})
    with eo.block(get_store(), scope="charge-card", key="k-result") as block:
        assert (block.first, block.result) == (False, {"charge": "ch_1"})


@pytest.mark.parametrize(
    "data", [{}, {"outcome": "maybe"}, {"outcome": "done", "result": "{"}, {"outcome": "retry", "result": "1"}], ids=str
)
def test_a_decision_that_makes_no_sense_is_asked_for_again(operator: Client, data: dict[str, str]) -> None:
    key = f"k-wrong-{data}"
    answer = operator.post(make_doubt(key), data)
    assert (answer.status_code, "errorlist" in answer.content.decode()) == (200, True)
    assert state_of(key) == "in_doubt"


def test_intents_and_sagas_are_decided_by_their_programs(operator: Client) -> None:
    page = make_doubt("i-1", scope="intents/shop/stripe/charge")
    assert "effectonce intents resolve" in operator.get(page).content.decode()
    assert operator.post(page, {"outcome": "retry"}).status_code == 200
    assert state_of("i-1", "intents/shop/stripe/charge") == "in_doubt"
    assert operator.post(page, {"outcome": "abandon"}).status_code == 302
    assert state_of("i-1", "intents/shop/stripe/charge") == "failed"


def test_what_is_decided_already_is_shown_and_not_decided_again(operator: Client) -> None:
    page = make_doubt("k-twice")
    assert operator.post(page, {"outcome": "done"}).status_code == 302
    assert "Decide" not in operator.get(page).content.decode()
    assert operator.post(page, {"outcome": "retry"}).status_code == 403
    assert state_of("k-twice") == "done"


@pytest.mark.parametrize("address", [page_of("k-never"), LIST + "no-json/change/", LIST + "[1, 2]/change/"])
def test_a_record_that_is_not_there_leads_back_to_the_list(operator: Client, address: str) -> None:
    answer = operator.get(address, follow=True)
    assert answer.redirect_chain == [(LIST, 302)]
    assert "no such record" in answer.content.decode()


def test_a_decision_that_cannot_be_written_down_is_not_applied(operator: Client, tmp_path: Path) -> None:
    page = make_doubt("k-unwritable")
    with override_settings(EFFECTONCE={**settings.EFFECTONCE, "AUDIT": str(tmp_path)}):  # a folder
        answer = operator.post(page, {"outcome": "done"}, follow=True)
    assert "Nothing was decided" in answer.content.decode()
    assert state_of("k-unwritable") == "in_doubt"
    history = LogEntry.objects.filter(object_id=encode_id("charge-card", "k-unwritable")).order_by("pk")
    assert [entry.change_message for entry in history] == ["asked for done", "done failed: [configuration]"]


def test_what_is_written_down_first_is_committed_first(operator: Client) -> None:
    """With ATOMIC_REQUESTS, too: a process that dies in the decision must leave a trace of it."""
    assert connection.settings_dict["ATOMIC_REQUESTS"]
    page, blocks = make_doubt("k-atomic"), []

    def note(event: eo.Event) -> None:
        if event.kind == "resolved":
            written = LogEntry.objects.filter(change_message="asked for abandon").exists()
            blocks.append((connection.in_atomic_block, written))

    get_store().add_hook(note)
    operator.post(page, {"outcome": "abandon"})
    assert blocks == [(False, True)]


# -- other stores


def test_a_private_store_keeps_its_keys_hidden(operator: Client) -> None:
    store = eo.connect("memory://", private="a secret of sixteen bytes or more")
    make_doubt("k-secret", store=store)
    with override_settings(EFFECTONCE={**settings.EFFECTONCE, "STORE": store}):
        text = operator.get(LIST).content.decode()
        (record,) = store.list(state="in_doubt").records
        assert "k-secret" not in text
        assert record.key[:50] in text
        assert operator.post(page_of(record.key), {"outcome": "retry"}).status_code == 302
    assert [each.state for each in store.list().records] == ["free"]


def test_a_store_that_does_not_answer_is_a_message(operator: Client) -> None:
    away = "postgresql://nobody@127.0.0.1:9/shop?connect_timeout=1s"
    with override_settings(EFFECTONCE={**settings.EFFECTONCE, "STORE": away}):
        answer = operator.get(LIST)
    assert answer.status_code == 503
    assert "does not answer" in answer.content.decode()


# -- requests


def test_a_request_is_recorded_in_the_tables_that_the_migration_made() -> None:
    client = login(name="customer", staff=False)
    answers = [client.post("/charges", headers={"Idempotency-Key": "k-1"}) for _ in range(2)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(201, b"charge 1")] * 2
    assert len(charges) == 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT state FROM effectonce_records WHERE scope = 'shop'")
        assert cursor.fetchall() == [("done",)]


def test_the_command_knows_the_store_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    make_doubt("k-command", scope="command")
    call_command("effectonce", "records", "list", "--scope", "command", "--json")
    assert [record["key"] for record in json.loads(capsys.readouterr().out)["records"]] == ["k-command"]


def test_the_command_writes_the_audit_log_of_the_project(audit: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTONCE_AUDIT", "")
    monkeypatch.delenv("EFFECTONCE_AUDIT")  # set and deleted, so that it is restored
    make_doubt("k-audited", scope="command")
    call_command("effectonce", "records", "resolve", "command", "k-audited", "--done", "--yes")
    assert "command k-audited" in {entry.target for entry in audit.recent(10)}


def test_the_command_says_how_it_ended() -> None:
    with pytest.raises(CommandError) as raised:
        call_command("effectonce", "records", "show", "no-scope", "no-key")
    assert raised.value.returncode == 1


def test_one_handle_serves_all_who_ask() -> None:
    stores: set[Any] = {get_store() for _ in range(3)}
    assert len(stores) == 1
