"""`effectonce explain`: what an error means and what to do, without the documentation at hand."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Annotated, Final

import typer

from effectonce import errors
from effectonce.display.suggestions import did_you_mean
from effectonce.display.terminal import Screen
from effectonce.errors import ConfigurationError, EffectOnceError, show

from .groups import first_sentence
from .options import Json
from .output import print_json

#: How the checker names its rules: EO201, P11.
_RULE: Final = re.compile(r"(?:EO|P)\d+", re.IGNORECASE)
ERRORS: dict[str, type[EffectOnceError]] = {
    error.code: error
    for name in errors.ERROR_NAMES
    if issubclass(error := getattr(errors, name), EffectOnceError) and "code" in vars(error)
}


def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE",
            help="The code of an error, as in in-doubt, or its class. Without it: list all.",
            autocompletion=list(ERRORS).copy,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what an error means and what to do. Its code is at the end of its traceback.

    Example: effectonce explain in-doubt
    """
    if code is None:
        list_errors(as_json)
        return
    by_class = {error.__name__: error for error in ERRORS.values()}
    error = ERRORS.get(code.lower()) or by_class.get(code)
    if error is None and _RULE.fullmatch(code):
        raise ConfigurationError(
            f"{code.upper()} is a rule of the checker; to explain it, run: effectonce lint --explain {code.upper()}"
        )
    if error is None:
        meant = did_you_mean(code, ERRORS)
        raise ConfigurationError(f"there is no error {show(code)!r};{meant} `effectonce explain` lists all of them")
    meaning = explanation(error)
    if as_json:
        print_json({"code": error.code, "error": error.__name__, "explanation": meaning})
        return
    screen = Screen()
    screen.print(f"{error.code} ({error.__name__})", "bold")
    for paragraph in meaning:
        screen.print()
        screen.print(textwrap.fill(paragraph, min(screen.width, 100)))


def list_errors(as_json: bool) -> None:
    """Print every code with the first sentence about it."""
    if as_json:
        print_json({code: first_sentence(explanation(error)[0]) for code, error in ERRORS.items()})
        return
    screen = Screen()
    width = max(map(len, ERRORS))
    for code, error in sorted(ERRORS.items()):
        screen.print(f"{code:{width}}  {first_sentence(explanation(error)[0])}")


def explanation(error: type[EffectOnceError]) -> list[str]:
    """The paragraphs of the error's docstring: what happened, and what to do."""
    paragraphs = re.split(r"\n\s*\n", inspect.getdoc(error) or "")
    return [" ".join(paragraph.split()).replace("``", "`") for paragraph in paragraphs]
