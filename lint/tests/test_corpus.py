"""The corpus: what the checker must find, and what it must leave alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from .labels import CORPUS, FAMILIES, design_files, designed, looked_at, scores, sources


def shown(path: Path) -> str:
    return str(path.relative_to(CORPUS))


@pytest.mark.parametrize("path", sources(), ids=shown)
def test_of_each_consumer_it_says_what_its_label_says(path: Path) -> None:
    wrong = {each.name: (each.expected, each.found) for each in looked_at(path) if each.expected != each.found}
    assert wrong == {}, "name: (expected, found)"


@pytest.mark.parametrize("path", design_files(), ids=shown)
def test_of_each_design_too(path: Path) -> None:
    wrong = {each.name: (each.expected, each.found) for each in designed(path) if each.expected != each.found}
    assert wrong == {}, "name: (expected, found)"


def test_the_corpus_is_large_and_has_both_kinds_of_each_family() -> None:
    consumers = [each for path in sources() for each in looked_at(path)]
    consumers += [each for path in design_files() for each in designed(path)]
    assert len(consumers) >= 500
    assert sum(not each.expected for each in consumers) >= 190
    for family in FAMILIES:
        assert sum(any(rule.startswith(family) for rule in each.expected) for each in consumers) >= 6, family
    for family, score in scores(consumers).items():
        assert (score.recall, score.precision) >= (0.95, 0.95), family
