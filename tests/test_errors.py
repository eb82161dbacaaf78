"""Every error is explained: in the reference, and by the command that its traceback ends with."""

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
    assert f"\n## {error.code}\n" in PAGE.read_text()


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: each.code)
def test_every_error_says_what_to_do(error: type[eo.EffectOnceError]) -> None:
    if error not in (eo.EffectOnceError, errors.Retryable):
        assert "\n\n    What to do: " in (error.__doc__ or "")


def test_no_two_errors_share_a_code() -> None:
    assert len({each.code for each in ERRORS}) == len(ERRORS)


def test_a_traceback_ends_with_the_command_that_explains_it_and_the_message_stays_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(eo.InDoubt) as raised:
        raise eo.InDoubt("nobody knows")
    error = raised.value
    assert str(error) == "nobody knows"
    assert repr(error) == "InDoubt('nobody knows')"
    shown = "".join(traceback.format_exception(error))
    assert shown.endswith("nobody knows\nfor what it means and what to do: effectonce explain in-doubt\n")
    logging.getLogger("shop").error("it failed", exc_info=error)
    assert len(re.findall("effectonce explain in-doubt", caplog.text)) == 1


def test_notes_of_others_are_kept_beside_it() -> None:
    error = eo.InProgress("wait", 3.0)
    error.add_note("order 7")
    assert error.__notes__ == ["for what it means and what to do: effectonce explain in-progress", "order 7"]
    error.__notes__ = ["mine"]
    assert traceback.format_exception_only(error)[-1] == "mine\n"
    assert eo.InProgress("wait").__notes__ == ["for what it means and what to do: effectonce explain in-progress"]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_copy_is_like_it(again: object) -> None:
    for error in (eo.InDoubt("x"), eo.InProgress("x", 2.0), eo.SagaFailed("x", "ValueError", "pay")):
        traceback.format_exception(error)
        other = again(error)  # type: ignore[operator]
        assert (type(other), str(other), other.__notes__) == (type(error), str(error), error.__notes__)


def test_in_a_group_too() -> None:
    shown = "".join(traceback.format_exception(ExceptionGroup("several", [eo.StoreUnavailable("x"), ValueError("y")])))
    assert "effectonce explain store-unavailable" in shown
