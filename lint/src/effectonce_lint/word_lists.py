"""Parses the word lists that the checker's tables are written as."""

from __future__ import annotations


def word_set(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


def tagged_pairs(text: str) -> frozenset[tuple[str, str]]:
    """Of ``tag:name,name tag:name``: every tag with each of its names."""
    return frozenset(
        (tag, name) for each in text.split() for tag, _, names in [each.partition(":")] for name in names.split(",")
    )
