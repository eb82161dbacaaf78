"""One consumer under check: its trace, its findings, and the questions that several rules ask."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from effectonce_lint.findings import Finding, Fix, Label, Place
from effectonce_lint.python.taints import MESSAGE, taint_details
from effectonce_lint.python.values import DetectedConsumer, Effect, Trace, TracedOperation, Value
from effectonce_lint.rules import RULES

TOOL_STORES = ("tool", "opaque")
DATABASE_STORES = ("sql", "orm", "entity")
GUARD_RULES = frozenset({"EO101", "EO102", "EO103", "EO104", "EO105", "EO106", "EO301", "EO302"})
"""Rules about the faults of a guard."""
AGENT_RULES = GUARD_RULES | {"P11", "EO303"}
"""The rules for a tool of an agent: nothing acks its calls, and what it publishes needs no outbox."""
_IS_REQUEST_ID = re.compile(
    r"(?:(?:event|message|msg|delivery|notification|webhook|request|idempotency)_?)?(?:id|key|uuid)$",
    re.IGNORECASE,
).match


@dataclass(eq=False)
class ConsumerCheck:
    """One consumer under check: its trace, and the findings so far."""

    consumer: DetectedConsumer
    trace: Trace
    settings: dict[str, tuple[Value, Place]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @cached_property
    def ops(self) -> list[TracedOperation]:
        """The operations for one message. In a loop, they begin where it is received."""
        start = self.consumer.receive
        if start is None:
            return self.trace.ops
        received = next((op for op in self.trace.ops if op.kind == "receive" and op.at == start), None)
        if received is None:
            return []
        return [op for op in self.trace.ops if op.seq >= received.seq]

    @cached_property
    def effects(self) -> list[TracedOperation]:
        """The effects, without those that are a check themselves, like a counter that the code compares."""
        compared = {id(guard) for op in self.ops for guard in op.guards if guard.kind == "effect"}
        return [op for op in self.ops if op.kind == "effect" and id(op) not in compared]

    @cached_property
    def only_rules(self) -> frozenset[str]:
        """The rules that apply; empty if all do.

        An HTTP endpoint that checks for duplicates expects them, so the rules about guards apply to it as well.
        """
        if self.consumer.family == "agent":
            return AGENT_RULES
        only = self.consumer.only_rules
        checks_duplicates = self.consumer.family == "webhook" and any(
            _expects_duplicates(guard) for op in self.effects for guard in op.guards
        )
        return only | GUARD_RULES if only and checks_duplicates else only

    @cached_property
    def work(self) -> list[TracedOperation]:
        """The operations that a lost message would leave undone."""
        return [
            op
            for op in self.ops
            if (op.kind in ("effect", "write", "claim", "mark", "unmark") and op.store != "memory")
            or (op.kind == "call" and receives_message(op))
        ]

    @cached_property
    def records(self) -> list[TracedOperation]:
        """The operations that may record that the message was handled."""
        return [op for op in self.ops if op.kind in ("mark", "claim", "write", "effect")]

    def report(
        self,
        rule: str,
        at: Place,
        message: str,
        *,
        labels: tuple[Label, ...] = (),
        trail: tuple[str, ...] = (),
        note: str = "",
        help: str = "",
        mode: str = "",
        fix: Fix | None = None,
        sure: bool = True,
        confidence: float = 1.0,
    ) -> None:
        """Add a finding, if the rule applies to this consumer. A finding that is not ``sure`` is a warning."""
        if self.only_rules and rule not in self.only_rules:
            return
        self.findings.append(
            Finding(
                rule=rule,
                severity=RULES[rule].severity if sure else "warning",
                place=at,
                message=message,
                symbol=self.consumer.name,
                labels=labels,
                trail=trail,
                note=note,
                help=help,
                mode=mode,
                fix=fix,
                confidence=min(confidence, RULES[rule].confidence),
            )
        )

    def calls_leading_to(self, op: TracedOperation) -> tuple[str, ...]:
        """The calls that lead from the consumer to ``op``; empty if it is in the consumer itself."""
        return (*op.trail, op.text) if len(op.trail) > 1 else ()


def _expects_duplicates(guard: TracedOperation) -> bool:
    """Whether a guard shows that requests are repeated: by its name, or because it claims the id of the request."""
    taint = guard.key.taint if guard.key is not None else frozenset()
    is_atomic_mark = guard.kind == "mark" and guard.atomic and guard.store in ("redis", "cache")
    claims_request = is_atomic_mark and any(map(_IS_REQUEST_ID, taint_details(taint, "field")))
    return (guard.dedup or claims_request) and guard.store not in TOOL_STORES and MESSAGE in taint


def identifies_message(op: TracedOperation) -> bool:
    """Whether the key of an operation is made of the message's own id."""
    taint = op.key.taint if op.key is not None else frozenset()
    return MESSAGE in taint and any(map(_IS_REQUEST_ID, taint_details(taint, "field")))


def receives_message(op: TracedOperation) -> bool:
    """Whether an operation gets the message, or a part of it."""
    return op.key is not None and MESSAGE in op.key.taint


def effect_of(op: TracedOperation) -> Effect:
    """The effect of an operation that has one."""
    assert op.effect is not None
    return op.effect


def in_same_transaction(first: TracedOperation, second: TracedOperation) -> bool:
    """Whether two operations are committed together."""
    return bool(first.tx) and first.tx == second.tx


def is_in_database(op: TracedOperation) -> bool:
    """Whether an operation takes part in the transactions of a database."""
    return op.store in DATABASE_STORES


def advice_for(effect: Effect) -> tuple[str, str]:
    """The mode that fits an effect, and what to do: in plain code first, then with effectonce."""
    if effect.category == "payment" and effect.provider:
        return "K", f"pass {effect.takes_key} made from the message's id; eo.Intents repeats it on every attempt"
    if effect.category in ("payment", "mail", "message", "http"):
        return (
            "I",
            "insert the message's id under a unique key and commit, and make the call only if the row is new; "
            "eo.Intents does so, and keeps an unknown outcome instead of repeating it",
        )
    if effect.in_database:
        return (
            "T",
            "insert the message's id under a unique key in the same transaction, and stop if it is there already, "
            "or make the write an upsert; effectonce: `if inbox.first(conn, message):`",
        )
    if effect.category == "publish":
        return (
            "T",
            "give the published message an id made from this one's, so that its consumers can drop the second; "
            "effectonce: claim with eo.Inbox and publish through eo.Outbox in one transaction",
        )
    return (
        "L",
        "make it an upsert or a set, or insert the message's id under a unique key first; @eo.once(store, key=...)",
    )
