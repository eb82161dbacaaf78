"""``manage.py effectonce …``: the command line of effectonce, inside of the project."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from effectonce.cli import main
from effectonce.errors import ConfigurationError
from effectonce.integrations.django.options import read_options, store_url


class Command(BaseCommand):
    """Runs ``effectonce`` with the project's apps loaded, and with the project's store and audit log where no other
    is given.

    The handlers of ``manage.py effectonce run shop.worker:worker`` can use the project's models.
    """

    help = "Run the command line of effectonce with the apps and the store of this project."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs=REMAINDER, metavar="COMMAND …", help="as for `effectonce`")

    def run_from_argv(self, argv: list[str]) -> None:
        """Hand every word on: ``--help`` and ``--version`` are those of effectonce, not of Django."""
        sys.exit(run(argv[2:]))

    def handle(self, *args: str, words: Sequence[str] = (), **options: Any) -> None:
        code = run(words)
        if code:
            raise CommandError(f"effectonce {' '.join(words[:2])} ended with {code}", returncode=code)


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        url, audit = store_url(), read_options()["AUDIT"]
    except ConfigurationError as error:
        print(f"effectonce: [{error.code}] {error}", file=sys.stderr)
        return 2
    if url is not None:
        os.environ.setdefault("EFFECTONCE_STORE", url)
    if audit is not None:
        os.environ.setdefault("EFFECTONCE_AUDIT", str(audit))
    return main(words)
