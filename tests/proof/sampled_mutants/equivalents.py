"""Mutants that no test can tell from the original, or that none should: each with its reason.

A mutant is named by its file and by its line before and after; it is left out of the sample as long as the line stands
as it is written here.
"""

from __future__ import annotations

from typing import Final

#: (file, the line before, the line after): why nobody can tell.
EQUIVALENTS: Final[dict[tuple[str, str, str], str]] = {}
