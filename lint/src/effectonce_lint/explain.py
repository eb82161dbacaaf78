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
It reads Python up to 3.14, whichever version it runs on. Exit code 0: nothing found; 1: there are findings; 2: wrong
usage, or a file or a consumer could not be checked.

You can use it without effectonce. If effectonce is installed, too, `effectonce lint` is the same command.

```console
$ pip install ./lint                                  # in a clone; it is not on PyPI yet
$ effectonce-lint .                                   # code frames, colour in a terminal
$ effectonce-lint . --output-format concise           # full, concise, json, sarif, github, junit
$ effectonce-lint . --all                             # also findings that are less sure
$ effectonce-lint . --diff                            # the changes that --fix would make
$ effectonce-lint --explain P11                       # or EO1: all rules that begin with EO1
$ effectonce-lint --stdin-filename app/tasks.py       # checks stdin: what an editor has not saved yet
$ effectonce-lint . --write-baseline lint-baseline.json
$ effectonce-lint . --baseline lint-baseline.json     # only new findings
```

Settings are in `pyproject.toml`; the command line overrides them:

```toml
[tool.effectonce.lint]
select = ["ALL"]                  # rules, or how they begin: "EO1"
confidence = 0.8                  # leave out findings that are less sure; --all is 0
ignore = ["EO502"]
exclude = ["migrations"]
baseline = "lint-baseline.json"

[tool.effectonce.lint.per-file-ignores]
"scripts/*" = ["P11"]
```

Each finding has a confidence. [The checker on real code](../checker.md) says what the default of 0.8 leaves out, and
how that was measured.

## What it does not know

If you use a library of your own, or one that the checker does not know, declare its names, each with the module that
defines it:

```toml
[tool.effectonce.lint]
consumers = ["myapp.tasks.instrumented_task", "myapp.jobs.Job.run"]
effects = ["myapp.gateway.pay"]
guards = ["myapp.dedup.once"]
```

- `consumers`: decorators, functions that take a handler, and methods of a base class that derived classes override to
  handle a message.
- `effects`: functions that must not run twice for a message. The checker does not look into them.
- `guards`: decorators, functions and context managers that keep a duplicate out. The checker trusts them.

`effectonce-lint --init` proposes consumers: it prints decorators that look as if they register a handler, and that it
does not know. You rarely have to declare a wrapper around a known library: the checker follows decorators, base classes
and registrations through imports and assignments.

## To hide a finding

`# effectonce: ignore[P11] why` hides a finding. Write it at the consumer, at the effect, or alone on the line above (in
Markdown between `<!--` and `-->`, in SQL after `--`). A comment that hides nothing is itself a finding. For pre-commit,
use the hook `effectonce-lint`.

The checker looks at imports, decorators and the types of objects, and follows calls through your project's own files.
It knows what is idempotent by itself (an upsert, a set, a delete by id), and what is a guard (a unique insert, `SET
NX`, an idempotency key, effectonce, powertools and others). It reports nothing that it cannot see.

## What it looked at

The last line says how much was checked:

```text
All clear.
971 files, 84 consumers (celery 79, webhook 5), 189 handlers judged, none skipped.
```

- **Consumers** are counted by framework. If there are none, the result is "No consumers found", and the exit code is 0.
- **Handlers judged** are the consumers, plus endpoints and similar functions, to which few rules apply.
- **Skipped** functions were not checked to their end. A line above names each, and says why. If code is too large or
  nested too deeply, the checker stops there, and reports what it has found so far. If the checker itself fails on a
  consumer, that is EO900, and the other consumers of the file are still checked.

JSON output has these figures as `coverage`, beside `findings`. SARIF has them as properties of the run, with a
notification for each skipped function.
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
