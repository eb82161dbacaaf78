"""The `effectonce` command.

`effectonce demo` needs no extra, and `effectonce lint` belongs to another distribution, effectonce-lint. All other
commands are in `app`, on typer (the extra ``cli``), which is imported only when one of them is run.

Exit codes are in `app.EXIT_CODES`, which ``--help`` prints. An `EffectOnceError` is one line on stderr, ``effectonce:
[code] message``, never a traceback, and no line shows a password.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from effectonce.errors import EffectOnceError, MissingDriver

HELP_WITHOUT_TYPER = """\
Usage: effectonce COMMAND [OPTIONS]

  effectonce demo           Deliver one payment twice, and charge it once
  effectonce demo --crash   Kill workers before and after the charge, and compare all modes
  effectonce lint PATHS     Find the consumer that will charge twice (needs effectonce-lint)
  effectonce --version

All other commands (migrate, check, doctor, run …) need one more library: pip install 'effectonce[cli]'
"""


INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default this process's own, and return its exit code. Errors are printed, and never
    raised."""
    if arguments is not None:
        return run_reporting_errors(list(arguments))
    code = run_reporting_errors(sys.argv[1:])
    # The command has ended: Ctrl-C while the interpreter cleans up must not replace its exit code.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    return code


def run_reporting_errors(words: list[str]) -> int:
    """Run the command that ``words`` name, print its error if it has one, and return its exit code."""
    from effectonce.display import redaction, terminal

    from . import interrupts

    terminal.replace_unencodable(sys.stdout, sys.stderr)
    try:
        code = dispatch(words)
        sys.stdout.flush()
    except EffectOnceError as error:
        print(redaction.error_line(error, words), file=sys.stderr)
        return INTERRUPTED if interrupts.is_interrupt(error) else 2
    except terminal.Declined:
        print("nothing was done", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the shell's prompt starts on a line of its own, after ^C
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it; Python would report that once more when it closes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if interrupts.is_interrupt(error):
            return INTERRUPTED
        print(redaction.redact(traceback.format_exc(), words), file=sys.stderr, end="")
        print(
            "effectonce: [defect] this is a bug in effectonce; please report it with the lines above", file=sys.stderr
        )
        return 2
    return code


def dispatch(arguments: list[str]) -> int:
    """Run the command that ``arguments`` name, and return its exit code. Raises `EffectOnceError`."""
    if arguments[:1] == ["demo"]:
        from effectonce.demo.charge_once import main as demo

        return demo(arguments[1:])
    if arguments[:1] == ["lint"]:
        return _lint(arguments[1:])
    if arguments in (["--version"], ["-V"]):
        print_version()
        return 0
    try:
        import typer  # noqa: F401
    except ImportError:
        if arguments in ([], ["--help"], ["-h"]):
            print(HELP_WITHOUT_TYPER, end="")
            return 0
        raise MissingDriver(
            "this command needs typer: pip install 'effectonce[cli]' (`effectonce demo` and `effectonce lint` run "
            "without it)"
        ) from None
    from .app import run as run_app

    return run_app(arguments)


def print_version() -> None:
    from effectonce import __version__

    print(f"effectonce {__version__}")


def _lint(arguments: list[str]) -> int:
    """Forward to the checker, which is a distribution of its own and may be missing."""
    try:
        from effectonce_lint.cli import main as lint
    except ModuleNotFoundError as error:
        if error.name != "effectonce_lint":
            raise
        raise MissingDriver(
            "`effectonce lint` needs the checker: pip install effectonce-lint (in a clone: pip install ./lint)"
        ) from None
    return lint(arguments, program="effectonce lint")
