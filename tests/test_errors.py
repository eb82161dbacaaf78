"""Errors lead to the page that explains them."""

from __future__ import annotations

import copy
import logging
import pickle
import re
import traceback
from pathlib import Path

import pytest

import effectonce as eo
from effectonce import errors

ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, eo.EffectOnceError)]
PAGE = Path(__file__).parent.parent / "docs" / "reference" / "errors.md"


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: each.code)
def test_every_code_has_its_anchor(error: type[eo.EffectOnceError]) -> None:
    page, _, anchor = error("why").help_url.partition("/#")
    assert page == "reference/errors"
    assert f"\n## {anchor}\n" in PAGE.read_text()


def test_no_two_errors_share_a_code() -> None:
    assert len({each.code for each in ERRORS}) == len(ERRORS)


def test_a_traceback_ends_with_the_page_and_the_message_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(eo.InDoubt) as raised:
        raise eo.InDoubt("nobody knows")
    error = raised.value
    assert str(error) == "nobody knows"
    assert repr(error) == "InDoubt('nobody knows')"
    shown = "".join(traceback.format_exception(error))
    assert shown.endswith("nobody knows\neffectonce docs: reference/errors/#in-doubt\n")
    logging.getLogger("shop").error("it failed", exc_info=error)
    assert len(re.findall("reference/errors/#in-doubt", caplog.text)) == 1


def test_notes_of_others_are_kept_beside_it() -> None:
    error = eo.InProgress("wait", 3.0)
    error.add_note("order 7")
    assert error.__notes__ == ["effectonce docs: reference/errors/#in-progress", "order 7"]
    error.__notes__ = ["mine"]
    assert traceback.format_exception_only(error)[-1] == "mine\n"
    assert eo.InProgress("wait").__notes__ == ["effectonce docs: reference/errors/#in-progress"]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_copy_is_like_it(again: object) -> None:
    for error in (eo.InDoubt("x"), eo.InProgress("x", 2.0), eo.SagaFailed("x", "ValueError", "pay")):
        traceback.format_exception(error)
        other = again(error)  # type: ignore[operator]
        assert (type(other), str(other), other.__notes__) == (type(error), str(error), error.__notes__)


def test_in_a_group_too() -> None:
    shown = "".join(traceback.format_exception(ExceptionGroup("several", [eo.StoreUnavailable("x"), ValueError("y")])))
    assert "reference/errors/#store-unavailable" in shown
