"""The corpus: consumers with labels, and what the checker says of them.

A label stands behind a consumer's `def` (``# expect: P11, EO303`` or ``# expect: clean``), or, in a file of one
consumer, on a line of its own (``# expect file: …``). Those of a design stand in a file beside it
(``orders.yaml.expect``): a rule and a name on each line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from effectonce_lint import designs
from effectonce_lint.designs.checks import check
from effectonce_lint.python.checks import check_consumer
from effectonce_lint.python.consumer_trace import trace_consumer
from effectonce_lint.python.consumers import ConsumerScanner
from effectonce_lint.python.project import Project

CORPUS = Path(__file__).parent / "corpus"
_LABEL = re.compile(r"#\s*expect:\s*(.+?)\s*$")
_FILE = re.compile(r"^#\s*expect file:\s*(.+?)\s*$", re.MULTILINE)

FAMILIES = {
    "P11": "unguarded effects",
    "EO1": "guards",
    "EO2": "acks",
    "EO3": "keys",
    "EO4": "composition",
    "EO5": "queues",
}


@dataclass
class Labelled:
    """One consumer of the corpus."""

    path: Path
    name: str
    expected: set[str]
    found: set[str] = field(default_factory=set)


@dataclass
class Score:
    right: int = 0
    missed: int = 0
    wrong: int = 0

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0


def sources() -> list[Path]:
    return sorted(path for path in CORPUS.rglob("*.py") if "designs" not in path.parts)


def design_files() -> list[Path]:
    return sorted(path for path in (CORPUS / "designs").iterdir() if path.suffix != ".expect")


def _rules(text: str) -> set[str]:
    return set() if text == "clean" else set(re.split(r"[,\s]+", text))


def labels_of(path: Path) -> dict[str, set[str]]:
    """What is expected of each consumer in a file, by its name; "" for the file as a whole."""
    text = path.read_text()
    if whole := _FILE.search(text):
        return {"": _rules(whole[1])}
    lines = text.splitlines()
    found = {name: _LABEL.search(_end_of_signature(lines, line)) for name, line in _functions(ast.parse(text))}
    return {name: _rules(label[1]) for name, label in found.items() if label}


def _end_of_signature(lines: list[str], start: int) -> str:
    """The line on which a signature ends that begins on line ``start``: the formatter may have wrapped it."""
    return next(line for line in lines[start - 1 :] if re.search(r":\s*(?:\.\.\.)?\s*(?:#.*)?$", line))


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child.lineno
            yield from _functions(child, prefix)
        else:
            yield from _functions(child, f"{child.name}." if isinstance(child, ast.ClassDef) else prefix)


def looked_at(path: Path) -> list[Labelled]:
    """Every consumer of a file with a label, or of which something was found."""
    project = Project([str(CORPUS)])
    labelled = {name: Labelled(path, name, rules) for name, rules in labels_of(path).items()}
    scanner = ConsumerScanner(project, project.add(str(path), path.read_bytes()))
    for consumer in scanner.scan():
        if consumer.module.path != str(path) and "" not in labelled:
            continue  # it is labelled where it is written
        name = "" if "" in labelled else consumer.name
        findings = check_consumer(consumer, trace_consumer(project, consumer), scanner.settings)
        if findings or name in labelled:
            labelled.setdefault(name, Labelled(path, name, set())).found |= {each.rule for each in findings}
    return list(labelled.values())


def designed(path: Path) -> list[Labelled]:
    """Every consumer and queue of a design with a label, or of which something was found."""
    labelled: dict[str, Labelled] = {}
    for line in Path(f"{path}.expect").read_text().splitlines():
        rule, _, name = line.partition(" ")
        labelled.setdefault(name, Labelled(path, name, set())).expected |= _rules(rule)
    for finding in check(designs.read_design(str(path), path.read_bytes())):
        labelled.setdefault(finding.symbol, Labelled(path, finding.symbol, set())).found.add(finding.rule)
    return list(labelled.values())


def scores(consumers: list[Labelled]) -> dict[str, Score]:
    """Recall and precision by family of rules."""
    out = {family: Score() for family in FAMILIES}
    for each in consumers:
        for rule in each.expected | each.found:
            score = out[next(family for family in FAMILIES if rule.startswith(family))]
            score.right += rule in each.expected & each.found
            score.missed += rule in each.expected - each.found
            score.wrong += rule in each.found - each.expected
    return out
