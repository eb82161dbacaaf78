"""The commands, each loaded when it is asked for. Needs typer (the extra ``cli``); reached through
`effectonce.cli.main` only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from .terminal import redacted

if TYPE_CHECKING:
    import argparse

#: command: what the list of commands says of it
COMMANDS = {
    "demo": "One payment, delivered twice, charged once.",
    "run": "Consume queues with your worker until SIGTERM.",
    "relay": "Send what outboxes hold to a broker, until SIGTERM.",
    "migrate": "Create or upgrade the store's schema.",
    "check": "Whether a store can keep its promise.",
    "doctor": "What is wrong, why it matters, and what to run.",
    "records": "What a store remembers: list, show, forget, resolve.",
    "outbox": "What waits in an outbox: list, stats, unpark.",
    "dlq": "Dead letters: list, show, redrive, purge.",
    "intents": "Calls to outside APIs: open, in doubt, resolve.",
    "sagas": "Sagas: on their way, in doubt, and how one went.",
    "verify": "Kill a handler at every step, count its effects.",
    "lint": "Find the consumer that will charge twice.",
    "dashboard": "All of this in a browser.",
}
EXIT_CODES = """\b
Exit codes, the same for every command:
  0    it is so, or it was done
  1    something was found, refused or left: its lines say what
  2    it could not be done: the command line, a setting, a server
  130  Ctrl-C: what was begun is whole, the rest was left
\b
URLs: --store and --broker; else EFFECTONCE_STORE and EFFECTONCE_BROKER; else
store and broker under [tool.effectonce] in pyproject.toml."""

#: typer keeps its own copy of click in newer versions, so the base of its errors is found, not imported.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]


def load(name: str) -> typer.Typer | Callable[..., None]:
    """The command ``name``: a function, or a group of commands."""
    if name == "run":
        from .worker import run

        return run
    if name == "relay":
        from .relay import relay

        return relay
    if name in ("migrate", "check"):
        from . import stores

        return stores.migrate if name == "migrate" else stores.check
    if name == "doctor":
        from .doctor import doctor

        return doctor
    if name == "records":
        from .records import records

        return records
    if name == "outbox":
        from .outbox import outbox

        return outbox
    if name == "dlq":
        from .dead_letters import dlq

        return dlq
    if name == "intents":
        from .intents import intents

        return intents
    if name == "sagas":
        from .sagas import sagas

        return sagas
    if name == "verify":
        from .verify import verify

        return verify
    if name == "demo":
        from effectonce.demo import charge_once as demo

        return _only_named(demo.command_line())
    if name == "lint":
        try:
            from effectonce_lint import cli as lint
        except ModuleNotFoundError:
            return lambda: None  # nothing to complete; run, it names the install command
        return _only_named(lint.command_line())
    from .dashboard import dashboard

    return dashboard


def _only_named(parser: argparse.ArgumentParser) -> Callable[..., None]:
    """The options of ``parser`` as a command, for the shell to complete: what needs no typer `main` runs itself."""

    def command(**options: Any) -> None: ...

    parameters: list[Parameter] = []
    for action in parser._actions:
        if action.option_strings and action.dest != "help":
            kind, choices = (bool, None) if action.nargs == 0 else (str, action.choices)
            named = typer.Option(
                *action.option_strings, help=action.help, autocompletion=list(choices).copy if choices else None
            )
            name = f"option_{len(parameters)}"
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, named]))
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


class _Commands(TyperGroup):
    """Knows its commands by name; loads the one that is run, or completed, and no other."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS:
            return super().resolve_command(ctx, args)
        found = load(name)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(name)(found)
            found = alone
        command = get_command(found)
        command.name = name
        return name, command, args[1:]


app = typer.Typer(
    cls=_Commands,
    help="At-least-once delivery, exactly-once effect.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, and those hold URLs with passwords
    rich_markup_mode=None,  # help in colour would take as long again
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; errors of ours come out as exceptions, a wrong command line is one line and 2."""
    try:
        code = app(args=list(arguments), prog_name="effectonce", standalone_mode=False)
    except _ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(_message(error))
            return 0
        print(redacted(f"effectonce: {_message(error)}", arguments), file=sys.stderr)
        context = getattr(error, "ctx", None)
        print(f"Try: {context.command_path if context else 'effectonce'} --help", file=sys.stderr)
        return 2
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # click makes a failure of it
            raise ended.__context__ from None
        raise
    return code if isinstance(code, int) else 0


def _message(error: Any) -> str:
    return str(error.format_message())


def _print_version(wanted: bool) -> None:
    if wanted:
        from effectonce import __version__

        print(f"effectonce {__version__}")
        raise typer.Exit


@app.callback()
def effectonce(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
