"""The rules: what each looks for, why it matters, and what to write instead.

A rule here is data. `docs/rules` is generated from it, `--explain` prints it, and its two examples are tests: the
checker must find the rule in ``bad`` and nothing in ``good``.
"""

from __future__ import annotations

from msgspec import Struct

from effectonce_lint.findings import Severity


class Rule(Struct, frozen=True, kw_only=True):
    """One rule. ``bad`` and ``good`` are whole files, in ``language``."""

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    bad: str
    good: str
    modes: str
    """Which of the modes T, K, I, L and S fits, and how."""
    confidence: float = 1.0
    """At most so sure are its findings, from 0 to 1: how often readers of real code agreed."""
    fix: str = ""
    """What `--fix` does, where that is mechanical."""
    language: str = "python"


class Mode(Struct, frozen=True):
    """A mode of effectonce, for the help of a finding: ``use`` says what to write."""

    letter: str
    name: str
    use: str


MODES = {
    "T": Mode("T", "transaction", "eo.Inbox: the dedup row first, in the transaction of the effect"),
    "K": Mode(
        "K", "keyed call", "eo.Intents: the call logged before it is made, with a key that every attempt repeats"
    ),
    "I": Mode("I", "unkeyed call", "eo.Intents, at most once: an unknown outcome is kept for an operator"),
    "L": Mode("L", "lease", "@eo.once: an atomic claim, a heartbeat, a stored result"),
    "S": Mode("S", "seen-set", '@eo.once(mode="seen"): the cheapest, for what is idempotent already'),
}


def _load_rules() -> dict[str, Rule]:
    from . import acks, composition, designs, guards, keys, meta

    rules = [*guards.RULES, *acks.RULES, *keys.RULES, *composition.RULES, *designs.RULES, *meta.RULES]
    return {rule.id: rule for rule in rules}


RULES: dict[str, Rule] = _load_rules()


def is_selected(rule: str, select: tuple[str, ...], ignore: tuple[str, ...]) -> bool:
    """Whether ``rule`` is on: the longest prefix that names it decides."""

    def longest_match(prefixes: tuple[str, ...]) -> int:
        """The length of the longest prefix that names the rule: 0 for ALL, -1 if none does."""
        lengths = [len(prefix) for prefix in prefixes if rule.startswith(prefix)]
        if "ALL" in prefixes:
            lengths.append(0)
        return max(lengths, default=-1)

    return longest_match(select) > longest_match(ignore)
