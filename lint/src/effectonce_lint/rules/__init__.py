"""The rules: what each looks for, why it matters, and what to write instead.

A rule here is data. `docs/rules` is made from it, `--explain` prints it, and its two examples are tests: the checker
must find the rule in ``bad`` and nothing in ``good``.
"""

from __future__ import annotations

from msgspec import Struct

from effectonce_lint.findings import Severity


class Rule(Struct, frozen=True, kw_only=True):
    """One rule. ``bad`` and ``good`` are whole files; ``language`` says of what kind."""

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    bad: str
    good: str
    modes: str
    """Which of the modes T, K, I, L and S fits, and how."""
    fix: str = ""
    """What `--fix` does, where that is mechanical."""
    language: str = "python"


class Mode(Struct, frozen=True):
    letter: str
    name: str
    use: str


MODES = {
    "T": Mode("T", "transactional", "eo.Inbox: the dedup row first, in the transaction of the effect"),
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

    def longest(prefixes: tuple[str, ...]) -> int:
        return max(
            (len(each) if each != "ALL" else 0 for each in prefixes if each == "ALL" or rule.startswith(each)),
            default=-1,
        )

    return longest(select) > longest(ignore)
