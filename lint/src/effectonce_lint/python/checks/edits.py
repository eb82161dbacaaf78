"""Edits that the fixes of several rules share."""

from __future__ import annotations

import ast

from effectonce_lint.findings import Edit, Fix, Place
from effectonce_lint.python.values import Operation


def add_argument(op: Operation, argument: str, words: str) -> Fix | None:
    """Make the fix that adds an argument to the call that ``op`` is."""
    node, module = op.node, op.module
    if not isinstance(node, ast.Call) or module is None:
        return None
    given = [*node.args, *(each.value for each in node.keywords)]
    if not given:
        return None
    last = module.place(max(given, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0)))
    return Fix(words, (Edit(end_of(last), f", {argument}"),))


def end_of(place: Place) -> Place:
    """The empty span right behind ``place``, where an edit inserts."""
    return Place(place.path, place.end_line, place.end_column, place.end_line, place.end_column)
