"""Errors in one line, as records, outboxes and dead letters keep them."""

from __future__ import annotations

import pytest

from effectonce.core.error_text import describe_error, error_class, error_text


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_is_named_with_its_text_on_one_line() -> None:
    assert describe_error(ValueError("a\nb")) == "ValueError: a\\nb"
    assert error_text(ValueError("a\nb")) == "a\\nb"


def test_an_error_without_a_text_is_its_class() -> None:
    assert describe_error(ValueError()) == "ValueError"
    assert error_text(ValueError()) == ""


def test_an_error_whose_text_cannot_be_made_is_its_class() -> None:
    assert describe_error(Unspeakable()) == "Unspeakable"
    assert error_text(Unspeakable()) == ""


@pytest.mark.parametrize("describe", [describe_error, error_text])
def test_f66_what_is_secret_in_a_url_is_left_out(describe: object) -> None:
    shown = describe(OSError("POST https://key:secret@api.shop.example/v1?token=t1 failed"))  # type: ignore[operator]
    assert shown.endswith("POST https://api.shop.example/v1 failed")


def test_a_long_text_is_cut() -> None:
    assert describe_error(ValueError("x" * 2000)) == "ValueError: " + "x" * 987 + "…"
    assert error_text(ValueError("x" * 2000)) == "x" * 999 + "…"
    assert error_text(ValueError("x" * 1000)) == "x" * 1000
    assert (describe_error(ValueError("abc"), 5), error_text(ValueError("abc"), 2)) == ("Valu…", "a…")


def test_a_class_is_named_with_its_module() -> None:
    assert error_class(Unspeakable()) == f"{__name__}:Unspeakable"
    assert error_class(ValueError()) == "builtins:ValueError"
