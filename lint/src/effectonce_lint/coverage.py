"""What a run looked at: the handlers that it found, and what it skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from .findings import Finding, Place


class Handler(Struct, frozen=True, kw_only=True):
    """A function, a loop or an entry of a design that was found and is to be judged."""

    subject: str
    """How messages name it: "the Celery task `charge`"."""
    framework: str
    """What delivers its messages: "celery", "webhook", "design". Empty for what is not a consumer: a plain endpoint."""
    place: Place


class Skip(Struct, frozen=True, kw_only=True):
    """Something that was not checked, or not to its end."""

    subject: str
    reason: str
    place: Place


def unreadable(subject: str, place: Place, message: str) -> Finding:
    """The finding that ``subject`` could not be checked, and why."""
    return Finding(rule="EO900", severity="error", place=place, message=message, symbol=subject)


def checker_failure(subject: str, place: Place, error: Exception) -> Finding:
    """The finding that a defect of the checker kept it from checking ``subject``."""
    cause = f"{type(error).__name__}: {error}"
    return unreadable(subject, place, f"the checker failed on {subject} ({cause}); please report this")


class Coverage(Struct, kw_only=True):
    """How much of the code a run judged."""

    files: int = 0
    consumers: dict[str, int] = {}
    """How many consumers were found, by framework, the most frequent first."""
    judged: int = 0
    """How many handlers were judged to their end: consumers, and endpoints and the like, to which few rules apply."""
    skipped: list[Skip] = []
    """The handlers, functions and files that were not checked, or not to their end."""


def measure_coverage(files: int, handlers: Iterable[Handler], skipped: Iterable[Skip]) -> Coverage:
    """Count ``handlers``, each once though several files may lead to it."""
    distinct = set(handlers)
    skips = sorted(set(skipped), key=lambda skip: (*skip.place.start, skip.reason))
    skipped_places = {(skip.subject, skip.place) for skip in skips}
    consumers = Counter(handler.framework for handler in distinct if handler.framework)
    return Coverage(
        files=files,
        consumers=dict(sorted(consumers.items(), key=lambda item: (-item[1], item[0]))),
        judged=sum((handler.subject, handler.place) not in skipped_places for handler in distinct),
        skipped=skips,
    )
