"""The pages of the reference that are read off the code: ``python -m tests.docs.reference`` writes them anew."""

from __future__ import annotations

import inspect
import re

import effectonce as eo
from effectonce import errors

from .pages import DOCS

REFERENCE = DOCS / "reference"


def errors_page() -> str:
    tree = re.findall(r"^    (.*)$", inspect.getdoc(errors) or "", re.MULTILINE)
    parts = [
        "# Errors, by code",
        "Every error has a stable code: alert on it. The message says what happened and what to do. What is "
        "`Retryable` is delivered again later, and never acked; everything else is for people.",
        "```text\n" + "\n".join(tree).rstrip() + "\n```",
    ]
    for name in errors.__all__:
        error = getattr(errors, name)
        if isinstance(error, type) and issubclass(error, Exception) and "code" in vars(error):
            parts += [f"## {error.code}", f"**`effectonce.{name}`.** {_plain(error)}"]
    return "\n\n".join(parts) + "\n"


def _plain(error: type) -> str:
    return " ".join((inspect.getdoc(error) or "").split()).replace("``", "`")


#: The public names by what they are for; all of them, which a test checks.
TOPICS: dict[str, tuple[str, ...]] = {
    "The guard": ("connect", "once", "block", "current", "Guarded", "Block", "Outcome", "Run", "GLOBAL"),
    "Stores and records": ("Store", "RedisStore", "PostgresStore", "Record", "Event"),
    "Transactional": ("Inbox", "Outbox", "Relay"),
    "Messages and workers": (
        "Message",
        "connect_broker",
        "Broker",
        "Worker",
        "Retry",
        "DeadLetterQueue",
        "bypass_external_effects",
    ),
    "Loops of your own": ("dispatcher", "Ack", "Again", "Dead"),
    "Intents and sagas": ("Intents", "Intent", "Saga", "Step", "Done"),
}


def api_page() -> str:
    parts = ["# The public names", "All of them are attributes of the package: `import effectonce as eo`."]
    for topic, names in TOPICS.items():
        parts.append(f"## {topic}")
        parts += [f"::: effectonce.{name}" for name in names]
    parts += ["## For tests", "::: effectonce.testing"]
    return "\n\n".join(parts) + "\n"


def undocumented() -> set[str]:
    """Public names that are neither in a topic nor an error, which has a page of its own."""
    listed = {name for names in TOPICS.values() for name in names}
    return {name for name in eo.__all__ if name not in listed and name not in errors.__all__} - {"keys", "__version__"}


PAGES = {"errors.md": errors_page, "api.md": api_page}


def main() -> None:
    for name, written in PAGES.items():
        (REFERENCE / name).write_text(written())


if __name__ == "__main__":
    main()
