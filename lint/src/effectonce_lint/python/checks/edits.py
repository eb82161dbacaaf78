"""Edits that the fixes of several rules share."""

from __future__ import annotations

import ast

from effectonce_lint.findings import Edit, Fix, Place
from effectonce_lint.python.values import TracedOperation


def add_argument(op: TracedOperation, argument: str, description: str) -> Fix | None:
    """Make the fix that adds an argument to the call of ``op``; None if there is no argument to put it behind."""
    node, module = op.node, op.module
    if not isinstance(node, ast.Call) or module is None:
        return None
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    if not arguments:
        return None
    last = max(arguments, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
    return Fix(description, (Edit(end_of(module.place(last)), f", {argument}"),))


def end_of(place: Place) -> Place:
    """The empty span right behind ``place``, where an edit inserts."""
    return Place(place.path, place.end_line, place.end_column, place.end_line, place.end_column)
