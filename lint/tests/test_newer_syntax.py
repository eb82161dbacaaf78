"""Code that is newer than the interpreter: it is read all the same, in the same lines and columns."""

from __future__ import annotations

import ast

import pytest

from effectonce_lint.python.modules import UnreadableFile, parse
from effectonce_lint.python.newer_syntax import rewrite_newer_syntax

from .conftest import Lint

NEWER = {
    "type parameters": "def first[T: (int, str) = int](rows: list[T]) -> T:\n    return rows[0]\n",
    "a generic class": "class Page[K,\n           V](dict[K, V]):\n    pass\n",
    "a type alias": "type Row[T] = list[T]\n",
    "the quotes of the f-string": """key = f"seen:{data["id"]}"\n""",
    "a backslash in an f-string": """text = f"{"\\n".join(rows)}: {data["id"]!r:>8}"\n""",
    "an f-string over lines": """text = f"{\n    data["id"]  # why\n}"\n""",
    "an f-string in an f-string": """text = f"{f"{data["id"]}"}"\n""",
    "a template string": """text = t"{data}"\n""",
    "errors without parentheses": "try:\n    pass\nexcept ValueError, TypeError:\n    pass\n",
}


@pytest.mark.parametrize("code", NEWER.values(), ids=NEWER)
def test_newer_syntax_becomes_what_python_3_11_reads(code: str) -> None:
    rewritten = rewrite_newer_syntax(code.encode())
    ast.parse(rewritten, feature_version=(3, 11))
    assert rewritten.count(b"\n") == code.count("\n")


def test_a_rewritten_f_string_still_shows_what_it_fills_in() -> None:
    assert rewrite_newer_syntax(b'key = f"seen:{data["id"]}"\n') == b"""key = f"seen:{data['id']}"\n"""
    assert b'"\\n".join(rows)' in rewrite_newer_syntax(b'text = f"{"\\n".join(rows)} of {data["id"]}"\n')


def test_an_annotation_keeps_its_parameters() -> None:
    assert b"rows: list[int]" in rewrite_newer_syntax(b"def first[T](rows: list[int]) -> T: ...\n")


def test_what_no_version_reads_is_reported_where_it_is() -> None:
    with pytest.raises(UnreadableFile, match="not valid Python") as caught:
        parse(b"x = 1\ndef broken[T](\n")
    assert caught.value.line == 2


def test_a_consumer_in_newer_code_is_judged(lint: Lint) -> None:
    with open("tasks.py", "w") as file:
        file.write(
            "import stripe\nfrom celery import shared_task\n\ntype Cents = int\n\n\n@shared_task\n"
            'def charge[T](payment_id: T, data):\n    stripe.Charge.create(amount=1, source=f"{data["card"]}")\n'
        )
    assert lint(".", "--output-format", "concise").rules() == ["P11", "EO303"]
