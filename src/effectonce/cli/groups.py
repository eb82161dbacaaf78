"""Commands that have subcommands: their lists in the help, and what a mistyped one may have meant."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from effectonce.display.suggestions import did_you_mean


class CommandGroup(TyperGroup):
    """Lists every subcommand with its whole help text, and answers an unknown one with those that are similar."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the subcommands. Typer's own list cuts their texts to one line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, first_sentence(command.help or "")) for name, command in commands if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{did_you_mean(args[0], names)}")
        return super().resolve_command(ctx, args)


def command_group(help: str) -> typer.Typer:
    """Make a command that has subcommands."""
    return typer.Typer(cls=CommandGroup, help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def first_sentence(help: str) -> str:
    """The first sentence of a help text or a docstring, on one line."""
    paragraph = " ".join(help.split("\n\n")[0].split())
    sentence, end, _ = paragraph.partition(". ")
    return sentence + end.rstrip() if end else paragraph
