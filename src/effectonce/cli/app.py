"""The commands, each imported when it is run. Only `effectonce.cli.main` imports this, since it needs typer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from . import print_version
from .redaction import redact


class CommandEntry(NamedTuple):
    help: str
    module: str  # in this package; it holds the command under its name, and is imported only when the command is run


COMMANDS = {
    "demo": CommandEntry("One payment, delivered twice, charged once.", "completion"),
    "run": CommandEntry("Consume queues with your worker until SIGTERM.", "run"),
    "relay": CommandEntry("Publish the messages of outboxes to a broker, until SIGTERM.", "relay"),
    "migrate": CommandEntry("Create or upgrade the store's schema.", "migrate"),
    "check": CommandEntry("Check whether a store can keep its promise.", "check"),
    "doctor": CommandEntry("Show what is wrong, why it matters, and what to run.", "doctor"),
    "records": CommandEntry("A store's records: list, show, forget, resolve.", "records"),
    "outbox": CommandEntry("An outbox's messages: list, stats, unpark.", "outbox"),
    "dlq": CommandEntry("Dead letters: list, show, redrive, purge.", "dead_letters"),
    "intents": CommandEntry("Calls to outside APIs: open, in doubt, resolve.", "intents"),
    "sagas": CommandEntry("Sagas: unfinished, in doubt, and the steps of one.", "sagas"),
    "verify": CommandEntry("Kill a handler at every step and count its effects.", "verify"),
    "lint": CommandEntry("Find the consumer that will charge twice.", "completion"),
    "dashboard": CommandEntry("All of this in a browser.", "dashboard"),
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

#: Newer versions of typer bundle click, so the base of click's errors cannot be imported from there.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]


class _Commands(TyperGroup):
    """Lists all commands by name, and imports only the one that is run or completed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name].help) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS:
            return super().resolve_command(ctx, args)
        loaded = getattr(import_module(f"{__package__}.{COMMANDS[name].module}"), name)
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


@app.callback()
def effectonce(version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False) -> None:
    if version:
        print_version()
        raise typer.Exit
