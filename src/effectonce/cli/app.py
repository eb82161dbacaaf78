"""The commands, each imported when it is run. Only `effectonce.cli.main` imports this, since it needs typer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from .terminal import redact

if TYPE_CHECKING:
    import argparse

#: Each command, with its line in the list of commands.
COMMANDS = {
    "demo": "One payment, delivered twice, charged once.",
    "run": "Consume queues with your worker until SIGTERM.",
    "relay": "Publish the messages of outboxes to a broker, until SIGTERM.",
    "migrate": "Create or upgrade the store's schema.",
    "check": "Check whether a store can keep its promise.",
    "doctor": "Show what is wrong, why it matters, and what to run.",
    "records": "A store's records: list, show, forget, resolve.",
    "outbox": "An outbox's messages: list, stats, unpark.",
    "dlq": "Dead letters: list, show, redrive, purge.",
    "intents": "Calls to outside APIs: open, in doubt, resolve.",
    "sagas": "Sagas: unfinished, in doubt, and the steps of one.",
    "verify": "Kill a handler at every step and count its effects.",
    "lint": "Find the consumer that will charge twice.",
    "dashboard": "All of this in a browser.",
}
EXIT_CODES = """\b
Exit codes, the same for every command:
  0    success
  1    something was found, refused or skipped: the output says what
  2    the command failed: its arguments, a setting, a server
  130  Ctrl-C: started steps were completed, the rest was skipped
\b
URLs: --store and --broker; else EFFECTONCE_STORE and EFFECTONCE_BROKER; else
store and broker under [tool.effectonce] in pyproject.toml."""

#: Newer versions of typer hold their own copy of click, so the base of its errors is looked up, not imported.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]


def load(name: str) -> typer.Typer | Callable[..., None]:
    """Import the command ``name``: a function, or a group of commands."""
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

        return _completion_of(demo.command_line())
    if name == "lint":
        try:
            from effectonce_lint import cli as lint
        except ModuleNotFoundError:
            return lambda: None  # it has nothing to complete; when run, it names the install command
        return _completion_of(lint.command_line())
    from .dashboard import dashboard

    return dashboard


def _completion_of(parser: argparse.ArgumentParser) -> Callable[..., None]:
    """Return the options of ``parser`` as a command, for shell completion: `main` runs these without typer."""

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


class _Commands(TyperGroup):
    """Lists all commands by name, and imports only the one that is run or completed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS:
            return super().resolve_command(ctx, args)
        loaded = load(name)
        if not isinstance(loaded, typer.Typer):
            single = typer.Typer(add_completion=False, rich_markup_mode=None)
            single.command(name)(loaded)
            loaded = single
        command = get_command(loaded)
        command.name = name
        return name, command, args[1:]


app = typer.Typer(
    cls=_Commands,
    help="At-least-once delivery, exactly-once effect.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, and those hold URLs with passwords
    rich_markup_mode=None,  # coloured help would double the start-up time
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 2 where it is wrong. Raises `EffectOnceError`."""
    try:
        code = app(args=list(arguments), prog_name="effectonce", standalone_mode=False)
    except _ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(_message(error))
            return 0
        print(redact(f"effectonce: {_message(error)}", arguments), file=sys.stderr)
        context = getattr(error, "ctx", None)
        print(f"Try: {context.command_path if context else 'effectonce'} --help", file=sys.stderr)
        return 2
    except SystemExit as exit:
        if isinstance(exit.__context__, BrokenPipeError):  # click turns it into a failure
            raise exit.__context__ from None
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
