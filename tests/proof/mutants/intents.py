"""Intents that are wrong: keys that change, sends that nobody wrote down, outcomes that are guessed."""

from __future__ import annotations

from typing import Any

from effectonce.core.guarded_call.finish import leave
from effectonce.core.notes import hidden, note
from effectonce.errors import InDoubt, LeaseLost
from effectonce.intents import log as flow
from effectonce.intents.operations import Operation
from effectonce.providers import Verdict

from .base import mutant

_key, _next, _judged = flow.Terms.key, flow.Terms.next, Operation._judged
_log_of, _note = flow.log_of, note


@mutant("F03", flow.Terms, "key", "intents-K+crash-after/1")
def key_changed_on_resend(self: Any, log: Any) -> str:
    """Every send has a key of its own."""
    return f"{_key(self, log)[:30]}{log.send_count}"


@mutant("F03", flow, "stamp", "intents-I+crash-after/1")
async def sent_before_noted(run: Any, client: Any, log: Any, terms: Any, began: float) -> None:
    """That it goes out is not written down before: after a crash it is sent as if it never had been."""
    log.send_count += 1
    log.first_sent_at = log.first_sent_at or run.token


@mutant("F03", flow, "log_of", "intents-K+crash-after+age/2")
def first_send_forgotten(run: Any) -> Any:
    """When it went out first is not kept: the provider's window is counted from the last claim."""
    log = _log_of(run)
    log.first_sent_at = run.token if log.send_count else 0
    return log


@mutant("F25", flow.Terms, "next", "intents-K+crash-after+age/2")
def window_ignored(self: Any, log: Any, now: int) -> str:
    """It is sent again however long ago it went out first."""
    return "send" if self.keyed else _next(self, log, now)


@mutant("F03", flow.Terms, "next", "intents-I+crash-after/1")
def keyless_sent_again(self: Any, log: Any, now: int) -> str:
    """Without a key, too, it is sent again blindly."""
    return "send"


def _as(kind: str) -> Any:
    def judged(self: Any, outcome: Any, log: Any) -> Verdict:
        verdict = _judged(self, outcome, log)
        return Verdict(kind, why=verdict.why) if verdict.kind == "unknown" else verdict  # type: ignore[arg-type]

    return judged


@mutant("F19", Operation, "_judged", "intents-K+mute/1")
def timeout_is_failure(self: Any, outcome: Any, log: Any) -> Verdict:
    """Nobody answered, so it has failed."""
    return _as("failure")(self, outcome, log)  # type: ignore[no-any-return]


@mutant("F03", Operation, "_judged", "intents-I+mute/1")
def timeout_is_not_executed(self: Any, outcome: Any, log: Any) -> Verdict:
    """Nobody answered, so nothing happened."""
    return _as("not_executed")(self, outcome, log)  # type: ignore[no-any-return]


@mutant("F03", Operation, "_judged", "intents-K+lose/1")
def timeout_is_success(self: Any, outcome: Any, log: Any) -> Verdict:
    """Nobody answered, so it went well."""
    return _as("success")(self, outcome, log)  # type: ignore[no-any-return]


@mutant("F36", flow, "doubt", "intents-I+age+lose/2")
async def doubt_told_unrecorded(run: Any, client: Any, log: Any, why: str) -> None:
    """What is in doubt is given up although the store does not know it: it is on nobody's list."""
    await leave(run, client, "in_doubt", why, hidden(run, flow._encode(log)))
    raise InDoubt(why)


@mutant("F08", flow, "note", "intents-I+lapse/1")
async def note_not_fenced(run: Any, client: Any, text: bytes) -> None:
    """One whose claim is over goes on and sends, although its note was refused."""
    try:
        await _note(run, client, text)
    except LeaseLost:
        run.refused = False
        run.sent_at = run.runtime.monotonic()
