"""The commands, each imported when it is run. Only `effectonce.cli.main` imports this, since it needs typer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_command

from effectonce.display.redaction import redact
from effectonce.display.suggestions import did_you_mean

from . import print_version
from .groups import CommandGroup


class CommandEntry(NamedTuple):
    help: str
    module: str  # in this package; it holds the command under its name, and is imported only when the command is run


COMMANDS = {
    "demo": CommandEntry("Deliver one payment twice, and charge it once.", "completion"),
    "run": CommandEntry("Consume queues with your worker until SIGTERM.", "run"),
    "relay": CommandEntry("Publish the messages of an outbox to a broker, until SIGTERM.", "relay"),
    "migrate": CommandEntry("Create or upgrade the store's tables.", "migrate"),
    "check": CommandEntry("Check whether a store can keep its promise.", "check"),
    "doctor": CommandEntry("Show what is wrong, why it matters, and what to run.", "doctor"),
    "records": CommandEntry("A store's records: list, show, stats, forget, resolve, purge.", "records"),
    "inbox": CommandEntry("Messages handled in a transaction: list, show, purge.", "inbox"),
    "outbox": CommandEntry("An outbox's messages: list, stats, unpark, discard.", "outbox"),
    "dlq": CommandEntry("Dead letters: list, show, redrive, purge.", "dead_letters"),
    "intents": CommandEntry("Calls to outside APIs: list, show, recover, resolve.", "intents"),
    "sagas": CommandEntry("Sagas: list, show, resume, compensate, resolve.", "sagas"),
    "find": CommandEntry("Find an order everywhere: by key, ordering key, message id.", "find"),
    "verify": CommandEntry("Kill a handler at every step and count its effects.", "verify"),
    "asyncapi": CommandEntry("Write what a worker receives as an AsyncAPI document.", "asyncapi"),
    "lint": CommandEntry("Find the consumer that will charge twice.", "completion"),
    "dashboard": CommandEntry("Open the dashboard in a browser.", "dashboard"),
    "explain": CommandEntry("Say what an error means, and what to do.", "explain"),
}
EPILOG = """\b
Examples:
  effectonce migrate --store sqlite:///shop.db
  effectonce run shop.worker:worker
  effectonce doctor shop.worker:worker
  effectonce records list --state in-doubt
  effectonce dlq redrive shop.worker:worker orders
\b
Where commands find the store and the broker:
  1. --store URL, --broker URL
  2. EFFECTONCE_STORE, EFFECTONCE_BROKER
  3. the nearest pyproject.toml:
       [tool.effectonce]
       store = "postgresql://shop@db/shop"
       broker = "amqp://mq"
       audit = "audit.jsonl"
The audit log: --audit FILE, EFFECTONCE_AUDIT, pyproject.toml.
\b
Exit codes, the same for every command:
  0    success
  1    something was found, refused or skipped
  2    the command failed: an argument, a setting, a server
  130  interrupted; work in progress was finished first
\b
NO_COLOR=1 prints without colours. In a pipe, every row of
a table is one line; --json is for programs."""

#: Newer versions of typer bundle click, so the base of click's errors cannot be imported from there.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]


class _Commands(CommandGroup):
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
    epilog=EPILOG,
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
        print(redact(f"effectonce: {_explain(error, arguments)}", arguments), file=sys.stderr)
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


def _explain(error: Any, arguments: Sequence[str]) -> str:
    """Return what is wrong with the command line, and what may have been meant."""
    if getattr(error, "option_name", None) and getattr(error, "possibilities", None) is not None:
        return f"{error.message}.{did_you_mean(error.option_name, error.possibilities)}"
    message = _message(error)
    if "unexpected extra argument" in message and any("://" in word for word in arguments):
        return f"{message}. A URL goes with an option: --store URL or --broker URL"
    return message


@app.callback()
def effectonce(version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False) -> None:
    if version:
        print_version()
        raise typer.Exit
