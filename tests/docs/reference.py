"""The pages of the reference that are read off the code: ``python -m tests.docs.reference`` writes them anew."""

from __future__ import annotations

import inspect
import re
from pkgutil import iter_modules

import effectonce as eo
from effectonce import errors, integrations

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


#: What is imported from a module of its own.
BESIDE: dict[str, tuple[str, ...]] = {
    "Keys": ("keys.composite", "keys.content_hash", "keys.time_window", "keys.broker_made"),
    "Envelopes": ("envelopes.CloudEvents", "envelopes.BabelQueue", "envelopes.Raw", "envelopes.Signed"),
    "HTTP": (
        "http.Route",
        "http.asgi.IdempotencyMiddleware",
        "http.wsgi.IdempotencyMiddleware",
        "http.client.for_httpx.IdempotentTransport",
        "http.client.for_httpx.AsyncIdempotentTransport",
        "http.client.for_requests.IdempotentAdapter",
        "http.client.Settings",
        "http.client.IntentLog",
    ),
    "Frameworks": (
        "integrations.fastapi.Idempotency",
        "integrations.flask.idempotent",
        "integrations.django.IdempotencyMiddleware",
        "integrations.django.Idempotency",
        "integrations.django.IdempotentView",
        "integrations.django_inbox.transactional",
        "integrations.celery.OnceTask",
        "integrations.dramatiq.Idempotency",
        "integrations.faststream.Idempotency",
        "integrations.taskiq.IdempotencyMiddleware",
        "integrations.aws_lambda.sqs_batch",
        "integrations.webhooks.stripe",
        "integrations.webhooks.github",
        "integrations.agents.tool_once",
        "integrations.babelqueue.seen_set",
    ),
    "Telemetry": (
        "telemetry.logging.EventLogger",
        "telemetry.prometheus.Metrics",
        "telemetry.opentelemetry.Tracing",
    ),
}


def api_page() -> str:
    parts = ["# The public names", "These are attributes of the package: `import effectonce as eo`."]
    parts += _listed(TOPICS)
    parts.append("Those that follow are imported from the module that their name begins with.")
    parts += [*_listed(BESIDE), "## For tests", "::: effectonce.testing"]
    return "\n\n".join(parts) + "\n"


def _listed(topics: dict[str, tuple[str, ...]]) -> list[str]:
    parts = []
    for topic, names in topics.items():
        parts += [f"## {topic}", *(f"::: effectonce.{name}" for name in names)]
    return parts


def undocumented() -> set[str]:
    """Public names that are neither in a topic nor an error, which has a page of its own; and integrations."""
    listed = {name for names in TOPICS.values() for name in names}
    names = {name for name in eo.__all__ if name not in listed and name not in errors.__all__} - {"keys", "__version__"}
    modules = {module.name for module in iter_modules(integrations.__path__)} - {"later"}
    return names | (modules - {name.split(".")[1] for name in BESIDE["Frameworks"]})


PAGES = {"errors.md": errors_page, "api.md": api_page}


def main() -> None:
    for name, written in PAGES.items():
        (REFERENCE / name).write_text(written())


if __name__ == "__main__":
    main()
