"""The options of `effectonce demo` and `effectonce lint`, for shell completion alone: `effectonce.cli.main` runs these
two without typer."""

from __future__ import annotations

import argparse
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from effectonce.demo.charge_once import command_line as demo_command_line


def _command_of(parser: argparse.ArgumentParser) -> Any:
    """Return a command with the options of ``parser``, which does nothing."""

    def command(**options: Any) -> None: ...

    parameters: list[Parameter] = []
    for action in parser._actions:
        if action.option_strings and action.dest != "help":
            kind, choices = (bool, None) if action.nargs == 0 else (str, action.choices)
            option = typer.Option(
                *action.option_strings, help=action.help, autocompletion=list(choices).copy if choices else None
            )
            name = f"option_{len(parameters)}"
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]))
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _lint_parser() -> argparse.ArgumentParser:
    try:
        from effectonce_lint.cli import command_line
    except ModuleNotFoundError:
        return argparse.ArgumentParser()  # nothing to complete; when run, `lint` names the install command
    return command_line()


demo = _command_of(demo_command_line())
lint = _command_of(_lint_parser())
