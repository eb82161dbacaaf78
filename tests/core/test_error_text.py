"""Errors in one line, as records, outboxes and dead letters keep them."""

from __future__ import annotations

import pytest

from effectonce.core.error_text import MAX_FRAMES, describe_error, error_class, error_frames, error_text
from effectonce.values.durations import micros


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


# -- where it was raised


def descend(depth: int) -> None:
    if depth == 0:
        raise ValueError("declined")
    descend(depth - 1)


@pytest.mark.parametrize("depth", [0, 50])
def test_an_error_has_its_handler_first_and_the_line_that_raised_it_last(depth: int) -> None:
    def handle() -> None:
        descend(depth)

    try:
        handle()
    except ValueError as error:
        places = error_frames(error)
    names = [place.rpartition(" in ")[2] for place in places]
    assert names[0] == "test_an_error_has_its_handler_first_and_the_line_that_raised_it_last"
    assert names[-1] == "descend"
    assert places[-1].startswith(f"{__file__}:{descend.__code__.co_firstlineno + 2}")
    assert len(places) <= MAX_FRAMES


def test_frames_of_effectonce_are_left_out() -> None:
    try:
        micros("soon", "lease")
    except Exception as error:
        (place,) = error_frames(error)
    assert place.startswith(__file__)


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert error_frames(ValueError()) == []
