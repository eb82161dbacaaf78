"""`effectonce explain`: what an error means and what to do."""

from __future__ import annotations

import json

import pytest

import effectonce as eo
from effectonce import errors

from .conftest import Cli


@pytest.mark.parametrize("name", errors.ERROR_NAMES)
def test_every_error_is_explained(name: str, inline: Cli) -> None:
    error: type[eo.EffectOnceError] = getattr(errors, name)
    done = inline("explain", error.code)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{error.code} ({name})\n\n")


def test_the_command_at_the_end_of_a_traceback_works(inline: Cli) -> None:
    command = eo.InDoubt("nobody knows").__notes__[0].rpartition(": ")[2]
    done = inline(*command.split()[1:])
    assert "What to do: look at the outside system" in done.out


def test_without_a_code_all_are_listed(inline: Cli) -> None:
    assert "\nlease-lost " in inline("explain").out
    assert json.loads(inline("explain", "--json").out)["in-doubt"].startswith("An earlier attempt ended")


@pytest.mark.parametrize("word", ["InDoubt", "In-Doubt", "IN-DOUBT"])
def test_the_class_that_a_log_names_and_capitals_are_understood(inline: Cli, word: str) -> None:
    assert inline("explain", word).out.startswith("in-doubt (InDoubt)\n\n")


def test_an_unknown_code_names_the_list(inline: Cli) -> None:
    done = inline("explain", "eo-142")
    assert done.code == 2
    assert (
        done.err == "effectonce: [configuration] there is no error 'eo-142'; `effectonce explain` lists all of them\n"
    )


@pytest.mark.parametrize("rule", ["EO201", "p11"])
def test_a_rule_of_the_checker_names_the_command_that_explains_it(inline: Cli, rule: str) -> None:
    command = inline("explain", rule).err.rpartition(": ")[2]
    assert command == f"effectonce lint --explain {rule.upper()}\n"
    assert inline(*command.split()[1:]).out.startswith(f"{rule.upper()}: ")
