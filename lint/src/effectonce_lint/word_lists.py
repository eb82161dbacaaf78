"""Parses the word lists that the checker's tables are written as."""

from __future__ import annotations


def word_set(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


def tagged_pairs(text: str) -> frozenset[tuple[str, str]]:
    """The pairs of ``tag:name,name tag:name``: every tag with each of its names."""
    pairs = set()
    for group in text.split():
        tag, _, names = group.partition(":")
        pairs |= {(tag, name) for name in names.split(",")}
    return frozenset(pairs)
