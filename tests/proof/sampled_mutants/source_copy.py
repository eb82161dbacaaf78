"""A copy of the package, in which one mutant at a time is put in place."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from .mutations import Mutant

PACKAGE: Final = Path(__file__).parents[3] / "src" / "effectonce"


class SourceCopy:
    """The package below a folder of its own, which is what `PYTHONPATH` is to name."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="eo-mutants-"))
        shutil.copytree(PACKAGE, self.folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        file = self.folder / PACKAGE.name / mutant.path
        original = file.read_bytes()
        self._write(file, mutant.apply(original))
        try:
            yield
        finally:
            self._write(file, original)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def _write(file: Path, source: bytes) -> None:
        """A compiled file is told from its source by second and size, which a mutant may share with the original."""
        file.write_bytes(source)
        Path(cache_from_source(str(file))).unlink(missing_ok=True)
