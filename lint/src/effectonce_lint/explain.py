"""Explains rules: in the terminal (`--explain`) and as pages of the documentation."""

from __future__ import annotations

import os
import sys

from .config import Config
from .rules import MODES, RULES, Rule


def list_rules() -> str:
    """All rules, one line each."""
    return "\n".join(f"{rule.id:<6} {rule.name:<26} {rule.severity:<8} {rule.summary}" for rule in RULES.values())


def explain_rule(rule: Rule) -> str:
    """The explanation of a rule for the terminal."""
    parts = [f"{rule.id}: {rule.name} ({rule.severity})", rule.summary, rule.why]
    parts.append("Instead of\n\n" + _indent(rule.bad) + "\n\nwrite\n\n" + _indent(rule.good))
    if rule.modes != "None.":
        parts.append("Which mode fits: " + " ".join(rule.modes.split()))
    if rule.fix:
        parts.append(f"--fix: {rule.fix}")
    parts.append(f"To hide it: # effectonce: ignore[{rule.id}] why")
    return "\n\n".join(parts)


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.rstrip().splitlines())


def rule_page(rule: Rule) -> str:
    """The page of a rule in the documentation, in Markdown."""
    language = {"terraform": "hcl"}.get(rule.language, rule.language)
    parts = [
        f"# {rule.id}: {rule.name}",
        f"**{rule.severity}**"
        + (" · fixable with `--fix`" if rule.fix else "")
        + (" · shown with `--all` only" if rule.confidence < Config().confidence else ""),
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


_USAGE = """\
# The checker

`effectonce-lint PATHS…` finds consumers whose effects would double, in Python code and in deployment files: AsyncAPI,
Terraform, CloudFormation, Serverless and docker-compose. With `--designs` it also reads lists and tables of consumers
(YAML, JSON, Markdown), Mermaid diagrams and the tables of SQL files. It runs none of your code and needs no server.
Python up to 3.14 is read, whatever version runs the checker. Exit code 0: nothing found; 1: there are findings; 2:
wrong usage, or a file or a consumer that could not be checked.

It is a distribution of its own and needs no effectonce. With effectonce installed, `effectonce lint` is the same
command.

```console
$ pip install ./lint                                  # in a clone; it is not on PyPI yet
$ effectonce-lint .                                   # code frames, colour in a terminal
$ effectonce-lint . --output-format concise           # full, concise, json, sarif, github, junit
$ effectonce-lint . --all                             # also what is less sure
$ effectonce-lint . --diff                            # the changes that --fix would make
$ effectonce-lint --explain P11                       # or EO1, for all that begin so
$ effectonce-lint --stdin-filename app/tasks.py       # what an editor has not saved yet
$ effectonce-lint . --write-baseline lint-baseline.json
$ effectonce-lint . --baseline lint-baseline.json     # only what is new
```

Settings are in `pyproject.toml`; the command line overrides them:

```toml
[tool.effectonce.lint]
select = ["ALL"]                  # rules, or their beginnings: "EO1"
confidence = 0.8                  # leave out what is less sure; --all is 0
ignore = ["EO502"]
exclude = ["migrations"]
baseline = "lint-baseline.json"

[tool.effectonce.lint.per-file-ignores]
"scripts/*" = ["P11"]
```

Each finding has a confidence. [How right the checker is on real code](../checker.md) says what the default of 0.8
leaves out, and how that was measured.

## What it does not know

A library of your own, or one that is not known to the checker, is declared by dotted name, the module that defines it
first:

```toml
[tool.effectonce.lint]
consumers = ["myapp.tasks.instrumented_task", "myapp.jobs.Job.run"]
effects = ["myapp.gateway.pay"]
guards = ["myapp.dedup.once"]
```

- `consumers`: decorators, and functions that are passed a handler; or the method of a base class by which its derived
  classes handle a message.
- `effects`: functions that must not run twice for a message. Their code is not followed.
- `guards`: decorators, functions and context managers that keep a duplicate out. They are trusted.

`effectonce-lint --init` proposes consumers: it prints the decorators whose names or code say that they make some, and
that it does not know. What wraps a known library is mostly found without a declaration: decorators, base classes and
registrations are followed through imports and assignments.

## To hide a finding

`# effectonce: ignore[P11] why` hides a finding: at the consumer, at the effect, or on a line of its own above it (in
Markdown between `<!--` and `-->`, in SQL behind `--`). A comment that hides nothing is itself a finding. For
pre-commit, use the hook `effectonce-lint`.

It decides by imports, decorators and what objects are made of, follows calls through the project's own files, and knows
what is idempotent by itself (an upsert, a set, a delete by id) and what guards (a unique insert, `SET NX`, an
idempotency key, effectonce, powertools and their like). What it cannot see it does not call wrong.

## What it looked at

The last line says how much was checked:

```text
All clear.
971 files, 84 consumers (celery 79, webhook 5), 189 handlers judged, none skipped.
```

- **Consumers** are counted by what delivers to them. With none, the result is "No consumers found", and the exit code
  is 0.
- **Handlers judged** are the consumers, and endpoints and the like, to which few rules apply.
- **Skipped** is what was not checked to its end: a line above names each function, and why. Code that is too large or
  nested too deeply is skipped from that point on; what was found before counts. A consumer on which the checker fails
  is EO900, and the others of its file are checked all the same.

JSON has the same as `coverage`, beside `findings`. SARIF has it as properties of the run, and a notification for each
skip.
"""


def index_page() -> str:
    """The page that lists the rules."""
    rows = [
        f"| [{rule.id}]({rule.id}.md) | {rule.name} | {rule.severity} | {rule.summary} |" for rule in RULES.values()
    ]
    modes = [f"| **{mode.letter}** | {mode.name} | {mode.use} |" for mode in MODES.values()]
    parts = [
        _USAGE,
        "## Rules",
        "\n".join(["| rule | name | severity | what it finds |", "|---|---|---|---|", *rows]),
        "## Modes",
        "\n".join(["| mode | name | in short |", "|---|---|---|", *modes]),
        "These pages are made from the rules: `python -m effectonce_lint.explain docs/rules`.",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def all_pages() -> dict[str, str]:
    """The text of every page, by the name of its file."""
    return {"index.md": index_page(), **{f"{rule.id}.md": rule_page(rule) for rule in RULES.values()}}


def write_pages(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    for name, text in all_pages().items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    write_pages(sys.argv[1])
