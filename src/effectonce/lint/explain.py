"""A rule, told: for the terminal (`--explain`) and as a page of the documentation."""

from __future__ import annotations

import os
import sys

from .rules import MODES, RULES, Rule


def listed() -> str:
    """All rules, one line each."""
    return "\n".join(f"{rule.id:<6} {rule.name:<26} {rule.severity:<8} {rule.summary}" for rule in RULES.values())


def told(rule: Rule) -> str:
    """For the terminal."""
    parts = [f"{rule.id}: {rule.name} ({rule.severity})", rule.summary, rule.why]
    parts.append("Instead of\n\n" + _indented(rule.bad) + "\n\nwrite\n\n" + _indented(rule.good))
    if rule.modes != "None.":
        parts.append("Which mode fits: " + " ".join(rule.modes.split()))
    if rule.fix:
        parts.append(f"--fix: {rule.fix}")
    parts.append(f"To hide it: # effectonce: ignore[{rule.id}] why")
    return "\n\n".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.rstrip().splitlines())


def page(rule: Rule) -> str:
    """For the documentation, in Markdown."""
    language = {"terraform": "hcl"}.get(rule.language, rule.language)
    parts = [
        f"# {rule.id}: {rule.name}",
        f"**{rule.severity}**" + (" · can be mended with `--fix`" if rule.fix else ""),
        rule.summary,
        "## Why",
        rule.why,
        "## Instead of",
        f"```{language}\n{rule.bad.rstrip()}\n```",
        "## write",
        f"```{language}\n{rule.good.rstrip()}\n```",
    ]
    if rule.modes != "None.":
        parts += ["## Which mode fits", " ".join(rule.modes.split())]
    if rule.fix:
        parts += ["## What `--fix` does", rule.fix]
    parts += ["## To hide it", f"`# effectonce: ignore[{rule.id}] why`, at the end of the line."]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The page that lists the rules."""
    rows = [
        f"| [{rule.id}]({rule.id}.md) | {rule.name} | {rule.severity} | {rule.summary} |" for rule in RULES.values()
    ]
    modes = [f"| **{mode.letter}** | {mode.name} | {mode.use.replace('|', '/')} |" for mode in MODES.values()]
    return "\n".join(
        [
            "# Rules of `effectonce lint`",
            "",
            "Made from the rules themselves: `python -m effectonce.lint.explain docs/rules`.",
            "",
            "| rule | name | severity | what it finds |",
            "|---|---|---|---|",
            *rows,
            "",
            "## Modes",
            "",
            "| mode | name | in short |",
            "|---|---|---|",
            *modes,
            "",
        ]
    )


def pages() -> dict[str, str]:
    """Every page, by the name of its file."""
    return {"index.md": index(), **{f"{rule.id}.md": page(rule) for rule in RULES.values()}}


def write(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    for name, text in pages().items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    write(sys.argv[1])
