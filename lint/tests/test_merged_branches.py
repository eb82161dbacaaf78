"""What branches leave in one name is unknown as far as they differ; the walk continues with it."""

from __future__ import annotations

import ast
import copy

import pytest

from effectonce_lint.findings import Finding
from effectonce_lint.python.analysis import check_module
from effectonce_lint.python.project import Project

from .labels import CORPUS, sources

QUERY = """\
import stripe
from celery import shared_task
from sqlalchemy import insert, select

from app.db import Session
from app.models import Payment


@shared_task
def charge(payment_id, amount, lock):
    with Session() as session:
        statement = {first}
        if lock:
            statement = {second}
        if session.execute(statement.with_for_update()).scalar_one_or_none():
            return
        stripe.Charge.create(amount=amount, idempotency_key=payment_id)
        session.add(Payment(amount=amount))
        session.commit()
"""


def findings_in(text: str, path: str = "/tasks.py") -> list[Finding]:
    project = Project([str(CORPUS)])
    return check_module(project, project.add(path, text.encode())).findings


def test_a_select_refined_in_a_branch_is_still_a_look_up_that_locks() -> None:
    refined = QUERY.format(first="select(Payment)", second="statement.where(Payment.id == payment_id)")
    assert findings_in(refined) == []
    unlocked = refined.replace(".with_for_update()", "")
    assert [finding.rule for finding in findings_in(unlocked)] == ["EO101"]


@pytest.mark.parametrize("other", ["None", "insert(Payment)", "build(Payment)", '"SELECT 1"'])
def test_a_name_that_is_a_statement_in_one_branch_only_is_unknown(other: str) -> None:
    text = QUERY.format(first="select(Payment)", second=other)
    assert [finding.rule for finding in findings_in(text)] == ["P11"]


class _SplitCalls(ast.NodeTransformer):
    """Replaces each call of a statement by a name, which a branch in front of it sets to the call or to `other`."""

    def __init__(self, other: str) -> None:
        self.other = other
        self.branches: list[ast.stmt] = []

    def visit_Call(self, node: ast.Call) -> ast.Name:
        self.generic_visit(node)
        name = f"part_{len(self.branches)}"
        if self.other == "without arguments":
            other: ast.expr = ast.Call(copy.deepcopy(node.func), [], [])
        else:
            other = ast.parse(self.other, mode="eval").body
        arms = [[ast.Assign([ast.Name(name, ast.Store())], value)] for value in (node, other)]
        self.branches.append(ast.If(ast.Name("unseen", ast.Load()), *arms))
        return ast.Name(name, ast.Load())

    def leave_alone(self, node: ast.AST) -> ast.AST:
        """The parts of these nodes have names of their own, or are not always evaluated."""
        return node

    visit_Lambda = visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = leave_alone
    visit_JoinedStr = visit_BoolOp = visit_IfExp = leave_alone


def split_calls(body: list[ast.stmt], other: str) -> list[ast.stmt]:
    split: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return):
            splitter = _SplitCalls(other)
            changed = splitter.visit(node)
            split += [*splitter.branches, changed]
            continue
        for part in ("body", "orelse", "finalbody"):
            if inner := getattr(node, part, None):
                setattr(node, part, split_calls(inner, other))
        split.append(node)
    return split


@pytest.mark.parametrize("other", ["without arguments", "None"])
def test_no_walk_fails_where_each_call_of_the_corpus_is_merged_with_something_else(other: str) -> None:
    for path in sources():
        tree = ast.parse(path.read_bytes())
        tree.body = split_calls(tree.body, other)
        findings_in(ast.unparse(ast.fix_missing_locations(tree)), str(path))
