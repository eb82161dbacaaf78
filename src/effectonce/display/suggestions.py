"""What a mistyped word on the command line may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the question which of the ``known`` words was meant, after a space; "" where none is similar."""
    matches = get_close_matches(word, list(known))
    return f" Did you mean {' or '.join(matches)}?" if matches else ""
