"""Intents that are wrong: keys that change, sends that are not recorded, outcomes that are guessed."""

from __future__ import annotations

from typing import Any

from effectonce.core.claim_notes import seal_note, write_note
from effectonce.core.guarded_call.finish import settle_unfinished
from effectonce.errors import InDoubt, LeaseLost
from effectonce.intents import claimed_intent
from effectonce.intents.claimed_intent import ClaimedIntent
from effectonce.intents.logged_intent import encode_log
from effectonce.intents.resend_rules import ResendRules
from effectonce.intents.runner import IntentRunner
from effectonce.providers import Verdict

from .base import mutant

_provider_key, _decide_next = ResendRules.provider_key, ResendRules.decide_next
_claim, _write_note, _classify = ClaimedIntent.__init__, write_note, IntentRunner._classify


@mutant("F03", ResendRules, "provider_key", "intents-K+crash-after/1")
def key_changed_on_resend(self: Any, log: Any) -> str:
    """Every send has a key of its own."""
    return f"{_provider_key(self, log)[:30]}{log.send_count}"


@mutant("F03", ClaimedIntent, "record_send", "intents-I+crash-after/1")
async def sent_before_noted(self: Any) -> None:
    """The send is not recorded before it goes out: after a crash it is sent as if it never had been."""
    self.log.send_count += 1
    self.log.first_sent_at = self.log.first_sent_at or self.run.token


@mutant("F03", ClaimedIntent, "__init__", "intents-K+crash-after+age/2")
def first_send_forgotten(self: Any, run: Any, *args: Any) -> None:
    """The time of the first send is not kept: the provider's window is counted from the last claim."""
    _claim(self, run, *args)
    self.log.first_sent_at = run.token if self.log.send_count else 0


@mutant("F25", ResendRules, "decide_next", "intents-K+crash-after+age/2")
def window_ignored(self: Any, log: Any, now: int) -> str:
    """It is sent again however long ago the first send was."""
    return "send" if self.keyed else _decide_next(self, log, now)


@mutant("F03", ResendRules, "decide_next", "intents-I+crash-after/1")
def keyless_sent_again(self: Any, log: Any, now: int) -> str:
    """Without a key, too, it is sent again blindly."""
    return "send"


def _unknown_as(kind: str) -> Any:
    def classify(self: Any, outcome: Any) -> Verdict:
        verdict = _classify(self, outcome)
        return Verdict(kind, why=verdict.why) if verdict.kind == "unknown" else verdict  # type: ignore[arg-type]

    return classify


@mutant("F19", IntentRunner, "_classify", "intents-K+mute/1")
def timeout_is_failure(self: Any, outcome: Any) -> Verdict:
    """A call without a reply has failed."""
    return _unknown_as("failure")(self, outcome)  # type: ignore[no-any-return]


@mutant("F03", IntentRunner, "_classify", "intents-I+mute/1")
def timeout_is_not_executed(self: Any, outcome: Any) -> Verdict:
    """A call without a reply was not executed."""
    return _unknown_as("not_executed")(self, outcome)  # type: ignore[no-any-return]


@mutant("F03", IntentRunner, "_classify", "intents-K+lose/1")
def timeout_is_success(self: Any, outcome: Any) -> Verdict:
    """A call without a reply has succeeded."""
    return _unknown_as("success")(self, outcome)  # type: ignore[no-any-return]


@mutant("F36", ClaimedIntent, "doubt", "intents-I+age+lose/2")
async def doubt_raised_unrecorded(self: Any, why: str) -> None:
    """A doubt is raised although the store has not recorded it: it is not on the operator's list."""
    await settle_unfinished(self.run, self.client, "in_doubt", why, seal_note(self.run, encode_log(self.events)))
    raise InDoubt(why)


@mutant("F08", claimed_intent, "write_note", "intents-I+lapse/1")
async def note_not_fenced(run: Any, client: Any, text: bytes) -> None:
    """A worker whose claim is over sends, although its note was refused."""
    try:
        await _write_note(run, client, text)
    except LeaseLost:
        run.renewal_refused = False
        run.lease_requested_at = run.runtime.monotonic()
