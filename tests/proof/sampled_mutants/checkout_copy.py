"""A copy of the checkout, with one mutant at a time in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from .mutations import Mutant

ROOT: Final = Path(__file__).parents[3]
PACKAGE: Final = Path("src", "effectonce")
NOT_COPIED: Final = shutil.ignore_patterns(
    ".git", ".venv*", ".servers", ".*_cache", ".hypothesis", "__pycache__", "site"
)


class CheckoutCopy:
    """Code and tests as they were when it was made: you can go on editing the checkout."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="eo-mutants-"))
        shutil.copytree(ROOT, self.root, ignore=NOT_COPIED, dirs_exist_ok=True)
        (self.root / ".servers").symlink_to(ROOT / ".servers")  # what `make servers` installed there
        self.package = self.root / PACKAGE

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        file = self.package / mutant.path
        original = file.read_bytes()
        self._write(file, mutant.apply(original))
        try:
            yield
        finally:
            self._write(file, original)

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    @staticmethod
    def _write(file: Path, source: bytes) -> None:
        """Write a module and drop its compiled file: Python would take that for current where the time (in seconds) and
        the size are the same, as those of a mutant and its original may be."""
        file.write_bytes(source)
        Path(cache_from_source(str(file))).unlink(missing_ok=True)
