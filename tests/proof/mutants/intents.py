"""Intents that are wrong: keys that change, sends that nobody wrote down, outcomes that are guessed."""

from __future__ import annotations

from typing import Any

from effectonce.core.guarded_call.finish import leave
from effectonce.core.notes import seal_note, write_note
from effectonce.errors import InDoubt, LeaseLost
from effectonce.intents import log as intent_log
from effectonce.intents.operations import IntentOperation
from effectonce.providers import Verdict

from .base import mutant

_provider_key, _decide_next = intent_log.ResendRules.provider_key, intent_log.ResendRules.decide_next
_read_log, _write_note, _classify = intent_log.read_log, write_note, IntentOperation._classify


@mutant("F03", intent_log.ResendRules, "provider_key", "intents-K+crash-after/1")
def key_changed_on_resend(self: Any, log: Any) -> str:
    """Every send has a key of its own."""
    return f"{_provider_key(self, log)[:30]}{log.send_count}"


@mutant("F03", intent_log, "record_send", "intents-I+crash-after/1")
async def sent_before_noted(run: Any, client: Any, log: Any, rules: Any, began: float) -> None:
    """That it goes out is not written down before: after a crash it is sent as if it never had been."""
    log.send_count += 1
    log.first_sent_at = log.first_sent_at or run.token


@mutant("F03", intent_log, "read_log", "intents-K+crash-after+age/2")
def first_send_forgotten(run: Any) -> Any:
    """When it went out first is not kept: the provider's window is counted from the last claim."""
    log = _read_log(run)
    log.first_sent_at = run.token if log.send_count else 0
    return log


@mutant("F25", intent_log.ResendRules, "decide_next", "intents-K+crash-after+age/2")
def window_ignored(self: Any, log: Any, now: int) -> str:
    """It is sent again however long ago it went out first."""
    return "send" if self.keyed else _decide_next(self, log, now)


@mutant("F03", intent_log.ResendRules, "decide_next", "intents-I+crash-after/1")
def keyless_sent_again(self: Any, log: Any, now: int) -> str:
    """Without a key, too, it is sent again blindly."""
    return "send"


def _as(kind: str) -> Any:
    def classify(self: Any, outcome: Any, log: Any) -> Verdict:
        verdict = _classify(self, outcome, log)
        return Verdict(kind, why=verdict.why) if verdict.kind == "unknown" else verdict  # type: ignore[arg-type]

    return classify


@mutant("F19", IntentOperation, "_classify", "intents-K+mute/1")
def timeout_is_failure(self: Any, outcome: Any, log: Any) -> Verdict:
    """Nobody answered, so it has failed."""
    return _as("failure")(self, outcome, log)  # type: ignore[no-any-return]


@mutant("F03", IntentOperation, "_classify", "intents-I+mute/1")
def timeout_is_not_executed(self: Any, outcome: Any, log: Any) -> Verdict:
    """Nobody answered, so nothing happened."""
    return _as("not_executed")(self, outcome, log)  # type: ignore[no-any-return]


@mutant("F03", IntentOperation, "_classify", "intents-K+lose/1")
def timeout_is_success(self: Any, outcome: Any, log: Any) -> Verdict:
    """Nobody answered, so it went well."""
    return _as("success")(self, outcome, log)  # type: ignore[no-any-return]


@mutant("F36", intent_log, "settle_in_doubt", "intents-I+age+lose/2")
async def doubt_told_unrecorded(run: Any, client: Any, log: Any, why: str) -> None:
    """What is in doubt is given up although the store does not know it: it is on nobody's list."""
    await leave(run, client, "in_doubt", why, seal_note(run, intent_log.encode_log(log)))
    raise InDoubt(why)


@mutant("F08", intent_log, "write_note", "intents-I+lapse/1")
async def note_not_fenced(run: Any, client: Any, text: bytes) -> None:
    """One whose claim is over goes on and sends, although its note was refused."""
    try:
        await _write_note(run, client, text)
    except LeaseLost:
        run.refused = False
        run.sent_at = run.runtime.monotonic()
