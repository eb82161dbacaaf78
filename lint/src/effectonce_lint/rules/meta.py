"""Rules about the files and comments themselves."""

from __future__ import annotations

from . import Rule

RULES = [
    Rule(
        id="EO900",
        name="unreadable",
        severity="error",
        summary="A file or a consumer could not be checked: not valid, not text, too large, or an unknown version.",
        why="""\
A file that cannot be read cannot be checked, and without this finding the run would look clean. The exit code is 2.""",
        bad="def charge(:\n",
        good="def charge(): ...\n",
        modes="None.",
    ),
    Rule(
        id="EO901",
        name="unused-ignore",
        severity="warning",
        summary="A comment `# effectonce: ignore[…]` hides nothing.",
        why="""\
It hid a finding once. If it stays, it hides the next finding on that line.""",
        bad="""\
def total(prices):  # effectonce: ignore[P11] prices are not messages
    return sum(prices)
""",
        good="""\
def total(prices):
    return sum(prices)
""",
        modes="None.",
        fix="Removes the comment.",
    ),
]
