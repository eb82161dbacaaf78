"""Which type the results of a function have."""

from __future__ import annotations

from typing import Any, Never, NoReturn, TypeVar

import pytest

from effectonce.guard.introspection import return_type

T = TypeVar("T")


def annotated(annotation: Any) -> Any:
    def function() -> None: ...

    function.__annotations__ = {} if annotation is ... else {"return": annotation}
    return function


@pytest.mark.parametrize("annotation", [..., Any, object, T, Never, NoReturn, "object", "T"])
def test_an_annotation_that_says_nothing_of_the_result_means_any_json_value(annotation: Any) -> None:
    assert return_type(annotated(annotation), ...) is Any


@pytest.mark.parametrize(
    ("annotation", "expected"), [(int, int), ("int", int), (None, type(None)), (list[int], list[int])]
)
def test_any_other_annotation_is_the_type(annotation: Any, expected: Any) -> None:
    assert return_type(annotated(annotation), ...) == expected


def test_what_is_passed_outranks_the_annotation() -> None:
    assert return_type(annotated(int), str) is str
    assert return_type(annotated(int), None) is None


def test_an_annotation_that_names_nothing_is_an_error() -> None:
    with pytest.raises(NameError):
        return_type(annotated("Undefined"), ...)
