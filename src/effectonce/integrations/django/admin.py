"""The admin page: records that are in doubt, and an operator's decision on each.

Staff with the permission ``effectonce.view_indoubtrecord`` may look, with ``effectonce.resolve_indoubtrecord`` decide.
Every decision is written down before it is applied and again afterwards, with the operator's name: in the audit log
(``EFFECTONCE["AUDIT"]``, else the environment's ``EFFECTONCE_AUDIT``) and in the history of Django's admin.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from effectonce.display.formatting import (
    format_ago,
    format_error,
    format_failure,
    format_failure_place,
    format_state,
    format_target,
    format_time,
)
from effectonce.display.timeline import record_timeline
from effectonce.errors import EffectOnceError, show
from effectonce.record import Record
from effectonce.store import Store
from effectonce.telemetry.audit_log import AuditLog
from effectonce.values.scopes import kind_of_scope

from .models import InDoubtRecord
from .options import get_store, read_options

PAGE_SIZE: Final = 50
MAX_AUDIT_ENTRIES: Final = 1000  # of the audit log, in which those of one record are looked for

OUTCOMES: Final = {
    "done": "It happened: duplicates are acked, or get the result below.",
    "retry": "It did not happen: the next delivery runs, as a new generation.",
    "abandon": "Give it up: it counts as failed, and never runs again.",
}
#: The command that decides the records of a kind of program, which continues from there.
PROGRAM_COMMANDS: Final = {
    "intent": "effectonce intents resolve MODULE:INTENTS",
    "saga": "effectonce sagas resolve MODULE:SAGA",
}


def encode_id(scope: str, key: str) -> str:
    """Return the id of a record in the admin's addresses and in its history."""
    return json.dumps([scope, key])


def _format_last_error(record: Record) -> str:
    return "" if record.error is None else format_error(*format_failure(record))


def decode_id(text: str) -> tuple[str, str]:
    """Return scope and key. Raises `ValueError` for a text that `encode_id` has not made."""
    scope, key = json.loads(text)
    if not isinstance(scope, str) or not isinstance(key, str):
        raise ValueError("not a scope and a key")
    return scope, key


class DecisionForm(forms.Form):
    """What an operator found out, after having looked whether the effect happened."""

    outcome = forms.ChoiceField(widget=forms.RadioSelect)
    result = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
        help_text="With “it happened”: its result as JSON, if you know it. Duplicates get it.",
    )

    def __init__(self, data: Any, *, kind: str) -> None:
        super().__init__(data)
        names = OUTCOMES if kind == "guard" else ("abandon",)
        self.fields["outcome"].choices = [(name, OUTCOMES[name]) for name in names]
        if kind != "guard":
            del self.fields["result"]

    def clean(self) -> dict[str, Any]:
        """Decode the result. Where the field is empty, ``...`` stands for a result that is not known."""
        values: dict[str, Any] = super().clean()
        text = values.get("result", "").strip()
        values["result"] = ...
        if text and values.get("outcome") != "done":
            self.add_error("result", "Only an effect that happened has a result.")
        elif text:
            try:
                values["result"] = json.loads(text)
            except ValueError as error:
                self.add_error("result", f"This is not JSON: {error}. Put text in quotes.")
        return values


class InDoubtRecordAdmin(admin.ModelAdmin):
    """Lists the records in doubt, shows one, and applies a decision. Nothing here reads a table of Django's."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_resolve_permission(request) or bool(super().has_view_permission(request, obj))

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        """Tell whether this user may decide."""
        user: Any = request.user
        return bool(user.has_perm(f"{self.opts.app_label}.resolve_{self.opts.model_name}"))

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            path("", self._admin_view(self.list_view), name=f"{name}_changelist"),
            path("<path:object_id>/change/", self._admin_view(self.record_view), name=f"{name}_change"),
        ]

    def _admin_view(self, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        """Let staff with the permission to view pass. A store that does not answer is a message.

        ATOMIC_REQUESTS opens no transaction: what is written down before a decision is committed before it.
        """

        def permitted(request: HttpRequest, **arguments: Any) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            try:
                return view(request, **arguments)
            except EffectOnceError as error:
                context = {**self.admin_site.each_context(request), "title": "Records in doubt", "error": str(error)}
                return TemplateResponse(request, "admin/effectonce/unavailable.html", context, status=503)

        guarded: Callable[..., HttpResponse] = self.admin_site.admin_view(permitted)
        return transaction.non_atomic_requests(guarded)  # type: ignore[no-any-return]

    def list_view(self, request: HttpRequest) -> HttpResponse:
        store = operators_store()
        scope = request.GET.get("scope") or None
        page = store.list(state="in_doubt", scope=scope, limit=PAGE_SIZE, cursor=request.GET.get("cursor") or None)
        now = store.now()
        rows = [
            {
                "id": encode_id(record.scope, record.key),
                "scope": show(record.scope),
                "key": show(record.key, 100),
                "attempts": record.attempts,
                "error": _format_last_error(record),
                "since": format_ago(record.changed_at, now),
            }
            for record in page.records
        ]
        context = {
            **self.admin_site.each_context(request),
            "title": "Records in doubt",
            "opts": self.opts,
            "rows": rows,
            "scope": scope or "",
            "cursor": page.cursor,
        }
        return TemplateResponse(request, "admin/effectonce/in_doubt.html", context)

    def record_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        store = operators_store()
        try:
            scope, key = decode_id(unquote(object_id))
            record = store.get(scope, key)
        except ValueError:
            record = None
        if record is None:
            self.message_user(request, "There is no such record any more.", messages.WARNING)
            return self._list()
        kind, state = kind_of_scope(record.scope), format_state(record, store.now())
        is_in_doubt = record.state == "in_doubt" or (state == "lapsed" and record.doubt_on_lapse)
        may_resolve = is_in_doubt and self.has_resolve_permission(request)
        form = DecisionForm(request.POST if request.method == "POST" else None, kind=kind)
        if request.method == "POST":
            if not may_resolve:
                raise PermissionDenied
            if form.is_valid():
                return self._resolve(request, store, record, form.cleaned_data["outcome"], form.cleaned_data["result"])
        target = format_target(record.scope, record.key)
        actions = [entry for entry in audit_log().recent(MAX_AUDIT_ENTRIES) if entry.target == target]
        place = repr(store.runtime.backend)
        context = {
            **self.admin_site.each_context(request),
            "title": "Record in doubt" if is_in_doubt else f"Record, {state}",
            "opts": self.opts,
            "scope": show(record.scope),
            "key": show(record.key),
            "state": state,
            "attempts": record.attempts,
            "generation": record.generation,
            "error": _format_last_error(record),
            "raised_at": format_failure_place(record),
            "moments": [
                {"at": format_time(moment.at), "what": moment.what, "by": moment.by, "detail": moment.detail}
                for moment in record_timeline(record, actions=actions, place=place)
            ],
            "form": form if may_resolve else None,
            "command": PROGRAM_COMMANDS.get(kind),
        }
        return TemplateResponse(request, "admin/effectonce/in_doubt_record.html", context)

    def _resolve(self, request: HttpRequest, store: Store, record: Record, outcome: Any, result: Any) -> HttpResponse:
        """Apply a decision, written down before and afterwards."""
        operator = str(request.user.get_username())
        target = format_target(record.scope, record.key)
        entry = InDoubtRecord(id=encode_id(record.scope, record.key))
        self.log_change(request, entry, f"asked for {outcome}")
        try:
            with audit_log().record_action(
                "records resolve", target, by=operator, detail=outcome, place=repr(store.runtime.backend)
            ):
                store.resolve(record.scope, record.key, outcome, result=result, who=operator)
        except EffectOnceError as error:
            self.log_change(request, entry, f"{outcome} failed: [{error.code}]")
            self.message_user(request, f"Nothing was decided: {error}", messages.ERROR)
        else:
            self.log_change(request, entry, f"resolved: {outcome}")
            self.message_user(request, f"{target}: {outcome}", messages.SUCCESS)
        return self._list()

    def _list(self) -> HttpResponse:
        name = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return HttpResponseRedirect(reverse(name))


def operators_store() -> Store:
    """Return the project's store. Of a private one it is a handle without the secret, which finds records by their
    hidden keys."""
    store = get_store()
    if not store.private:
        return store
    return Store(store.runtime.backend, hooks=store.hooks, sweep_every=None)


def audit_log() -> AuditLog:
    """Return the audit log of the settings; without one, decisions go to its logger alone."""
    return AuditLog(read_options()["AUDIT"] or os.environ.get("EFFECTONCE_AUDIT") or None)


admin.site.register(InDoubtRecord, InDoubtRecordAdmin)
