"""The rules themselves: their names stay, their examples are true, their pages are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from effectonce_lint import designs, explain
from effectonce_lint.designs.checks import check
from effectonce_lint.python.analysis import check_module
from effectonce_lint.python.modules import UnreadableFile
from effectonce_lint.python.project import Project
from effectonce_lint.rules import MODES, RULES, Rule, is_selected

ROOT = Path(__file__).parents[2]
NAMES = {
    "P11": "unguarded-effect",
    "EO101": "check-then-act",
    "EO102": "dedup-outside-transaction",
    "EO103": "effect-before-record",
    "EO104": "marked-before-success",
    "EO105": "redis-dedup",
    "EO106": "retention-too-short",
    "EO201": "ack-before-work",
    "EO202": "swallowed-exception",
    "EO301": "unstable-key",
    "EO302": "payload-key",
    "EO303": "missing-provider-key",
    "EO304": "key-per-retry",
    "EO401": "dual-write",
    "EO402": "unsafe-compensation",
    "EO501": "visibility-too-short",
    "EO502": "no-dead-letter-queue",
    "EO503": "broker-dedup-only",
    "EO900": "unreadable",
    "EO901": "unused-ignore",
}
ABOUT_CODE = [rule for rule in RULES.values() if not rule.id.startswith("EO9")]


def found(rule: Rule, text: str) -> set[str]:
    if rule.language == "python":
        project = Project()
        return {each.rule for each in check_module(project, project.add(f"/{rule.id}.py", text.encode())).findings}
    ending = {"terraform": "tf"}.get(rule.language, rule.language)
    return {each.rule for each in check(designs.read_design(f"/{rule.id}.{ending}", text.encode()))}


def test_their_ids_and_names_stay() -> None:
    assert {rule.id: rule.name for rule in RULES.values()} == NAMES


@pytest.mark.parametrize("rule", ABOUT_CODE, ids=lambda rule: rule.id)
def test_the_bad_example_is_found_by_its_own_rule(rule: Rule) -> None:
    assert rule.id in found(rule, rule.bad)


@pytest.mark.parametrize("rule", ABOUT_CODE, ids=lambda rule: rule.id)
def test_the_good_example_is_clean(rule: Rule) -> None:
    assert found(rule, rule.good) == set()


@pytest.mark.parametrize("rule", ABOUT_CODE, ids=lambda rule: rule.id)
def test_a_rule_says_why_and_which_mode_fits(rule: Rule) -> None:
    assert len(rule.why) > 100
    assert re.match(rf"(?:Any|[{''.join(MODES)}])\b", rule.modes)


def test_the_example_of_an_unreadable_file_is_one() -> None:
    rule = RULES["EO900"]
    with pytest.raises(UnreadableFile, match="not valid Python"):
        Project().add("/bad.py", rule.bad.encode())
    Project().add("/good.py", rule.good.encode())


def test_the_pages_are_made_from_the_rules() -> None:
    """`python -m effectonce_lint.explain docs/rules` makes them anew."""
    folder = ROOT / "docs" / "rules"
    assert {path.name: path.read_text() for path in folder.glob("*.md")} == explain.all_pages()


def test_the_readme_says_what_is_found_in_its_example() -> None:
    readme = (ROOT / "lint" / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert found(RULES["P11"], example) == {"P11", "EO303"}
    mended = example.replace('"eur"', '"eur", idempotency_key=payment_id')
    assert found(RULES["P11"], mended) == set()


@pytest.mark.parametrize(
    ("select", "ignore", "on"),
    [
        (("ALL",), (), True),
        (("ALL",), ("EO1",), False),
        (("ALL",), ("EO105",), False),
        (("P11",), (), False),
        (("EO1",), (), True),
        (("EO105",), ("EO1",), True),
        (("EO1",), ("EO105",), False),
        (("ALL", "EO105"), ("EO1",), True),
    ],
)
def test_the_longest_name_decides_whether_a_rule_is_on(
    select: tuple[str, ...], ignore: tuple[str, ...], on: bool
) -> None:
    assert is_selected("EO105", select, ignore) is on
