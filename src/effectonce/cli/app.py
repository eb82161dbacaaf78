"""The commands on a store. Needs typer (the extra ``cli``); reached through `effectonce.cli.main` only."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from msgspec import json

from effectonce import __version__
from effectonce.errors import ConfigurationError, EffectOnceError
from effectonce.store import ENVIRONMENT, Store, connect

from .dlq import dlq
from .intents import intents
from .relay import outbox, relay
from .sagas import sagas
from .terminal import error_line, redacted, without_secrets
from .verify import verify
from .worker import run as run_worker

#: typer keeps its own copy of click in newer versions, so the base of its errors is found, not imported.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    help="At-least-once delivery, exactly-once effect.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, and those hold URLs with passwords
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        envvar=ENVIRONMENT,
        show_default=False,
        help="The store: sqlite:///shop.db, redis://…, postgresql://…, mysql://…, dynamodb://table?region=…",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


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
    return code if isinstance(code, int) else 0


def _message(error: Any) -> str:
    return str(error.format_message())


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"effectonce {__version__}")
        raise typer.Exit


@app.callback()
def effectonce(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def demo(context: typer.Context) -> None:
    """One payment, delivered twice, charged once."""
    # `main` has dispatched it before it gets here: this entry is for --help.
    from .demo import main

    raise typer.Exit(main(context.args))


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def lint(context: typer.Context) -> None:
    """Find the consumer that will charge twice, before it does."""
    # As for the demo: `main` has dispatched it before it gets here.
    from effectonce.lint.cli import main

    raise typer.Exit(main(context.args))


@app.command()
def migrate(
    url: Url,
    sql: Annotated[bool, typer.Option("--sql", help="Only print the schema, for your own migrations.")] = False,
    as_json: Json = False,
) -> None:
    """Create or upgrade the store's schema. Safe to run twice, and from two machines at once."""
    with opened(url) as store:
        if sql:
            print_schema(store, url, as_json)
            return
        store.migrate()
    report(as_json, f"{without_secrets(url)} is ready", store=without_secrets(url), migrated=True)


@app.command()
def check(url: Url, as_json: Json = False) -> None:
    """Connect, and say what would keep the store from its promise. Exit code 1 where there is something."""
    shown = without_secrets(url)
    with opened(url) as store:
        try:
            store.check()
        except EffectOnceError as error:
            if as_json:
                message = redacted(str(error), [url])
                report(True, "", store=shown, ok=False, code=error.code, error=message)
            else:
                print(error_line(error, [url]), file=sys.stderr)
            raise typer.Exit(1) from None
    report(as_json, f"{shown} can keep its promise", store=shown, ok=True)


app.command("run")(run_worker)
app.add_typer(dlq, name="dlq")
app.command()(verify)
app.add_typer(intents, name="intents")
app.add_typer(sagas, name="sagas")
app.command()(relay)
app.add_typer(outbox, name="outbox")


def print_schema(store: Store, url: str, as_json: bool) -> None:
    """The schema on stdout, and nothing else there: it is meant to be piped."""
    schema = store.schema_sql()
    if as_json:
        report(True, "", store=without_secrets(url), sql=schema)
    elif schema:
        print(schema.rstrip())
    else:
        raise ConfigurationError(
            f"{without_secrets(url)} has no SQL schema to print; `effectonce migrate` without --sql prepares it, where "
            "there is anything to prepare"
        )


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """The store at ``url``, closed afterwards."""
    with connect(url, sweep_every=None) as store:
        yield store


def report(as_json: bool, text: str, **facts: object) -> None:
    """``text`` for people, or the ``facts`` as one JSON object."""
    print(json.encode(facts).decode() if as_json else text)
