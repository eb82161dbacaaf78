"""Frameworks: which decorators, base classes and routes make a function a consumer."""

from __future__ import annotations

import re

from effectonce_lint.python.values import Value
from effectonce_lint.word_lists import word_set

#: family: what a person calls one of its consumers, and the decorators that make one, by their dotted names.
_DECORATORS = {
    "celery": ("Celery task", word_set("celery.shared_task celery.task celery.decorators.task celery.app.shared_task")),
    "dramatiq": ("Dramatiq actor", word_set("dramatiq.actor")),
    "rq": ("rq job", word_set("rq.decorators.job rq.job django_rq.job")),
    "django": ("Django task", word_set("django.tasks.task django_tasks.task")),
    "huey": ("Huey task", word_set("huey.contrib.djhuey.task huey.contrib.djhuey.db_task")),
    "pubsub": ("Cloud Event function", word_set("functions_framework.cloud_event")),
    "nameko": ("Nameko event handler", word_set("nameko.events.event_handler")),
    "taskiq": ("taskiq task", word_set("taskiq.async_shared_broker.task")),
    "webhook": (
        "webhook",
        word_set("djstripe.webhooks.handler djstripe.webhooks.handler_all djstripe.event_handlers.djstripe_receiver"),
    ),
}
BY_REF = {ref: (family, kind) for family, (kind, refs) in _DECORATORS.items() for ref in refs}

#: (what it is called on, its name): the same for decorators that are methods.
_BY_METHOD = {
    ("celery.app", "task"): ("celery", "Celery task"),
    ("faststream.broker", "subscriber"): ("faststream", "FastStream subscriber"),
    ("taskiq.broker", "task"): ("taskiq", "taskiq task"),
    ("procrastinate.app", "task"): ("procrastinate", "Procrastinate task"),
    ("huey", "task"): ("huey", "Huey task"),
    ("faust.app", "agent"): ("faust", "Faust agent"),
    ("eo.worker", "handler"): ("effectonce", "worker's handler"),
    ("babelqueue", "handler"): ("babelqueue", "BabelQueue handler"),
    ("azure.app", "service_bus_queue_trigger"): ("servicebus", "Service Bus function"),
    ("azure.app", "service_bus_topic_trigger"): ("servicebus", "Service Bus function"),
    ("azure.app", "queue_trigger"): ("servicebus", "Storage Queue function"),
    ("azure.app", "event_hub_message_trigger"): ("servicebus", "Event Hub function"),
}
_CELERY_ONLY = word_set("bind acks_late autoretry_for max_retries default_retry_delay")
_ROUTES = word_set("post put patch route api_route")
_ROUTE_REFS = word_set(
    "litestar.post litestar.put litestar.patch bottle.post bottle.put rest_framework.decorators.api_view"
)
_APPS = word_set("app router api bp blueprint webhooks")
_VIEWS = word_set(
    "APIView View GenericAPIView MethodView ViewSet HTTPEndpoint GenericViewSet Resource RequestHandler HTTPMethodView"
)

WEBHOOK = re.compile(
    r"web_?hook|/hooks?(?:/|$)|/callbacks?(?:/|$)|/ipn(?:/|$)|_hook(?:$|\.|_view)|^hook_|(?:^|_)ipn(?:_|$)"
    r"|notif(?:y|ications?)/?$|(?<!auth)(?<!login)(?<!sso)_callback(?:$|_view)",
    re.IGNORECASE,
)
"""Paths and names of what a provider calls."""
SIGNED = re.compile(
    rb"construct_event|svix|X-Hub-Signature|Stripe-Signature|HTTP_STRIPE_SIGNATURE|X-Shopify-Hmac|X-GitHub-Event"
    rb"|verify_webhook|webhook_signature|compare_digest|[\"']\w[\w-]*[-_]signature\b|\b(?:verif|check|valid)\w*_signature",
    re.IGNORECASE,
)
"""Code that checks a sender's signature."""


def consumer_of_decorator(target: Value, given: set[str]) -> tuple[str, str]:
    """The family and kind of consumer that a decorator makes, given the names of its arguments; empty if it is none."""
    if found := BY_REF.get(target.ref):
        return found
    base = target.base
    if base is None:
        return "", ""
    if found := _BY_METHOD.get((base.tag, target.attr)):
        return found
    if base.tag or target.function is not None:
        return "", ""
    # the application object comes from a file that is out of sight
    where = f"{base.ref}.{base.text}".lower()
    if target.attr == "task" and ("celery" in where or given & _CELERY_ONLY):
        return "celery", "Celery task"
    if target.attr == "task" and "procrastinate" in where:
        return "procrastinate", "Procrastinate task"
    if target.attr == "task" and "broker" in where:
        return "taskiq", "taskiq task"
    if target.attr == "subscriber" and ("broker" in where or "router" in where):
        return "faststream", "FastStream subscriber"
    return "", ""


def consumer_of_class(ancestors: list[str], methods: set[str]) -> tuple[str, str, str]:
    """The same for a class: family, kind, and the method that is called. A view is one only if it is a webhook."""
    if "run" in methods and any(each.endswith(("celery.Task", "task.Task", "app.Task")) for each in ancestors):
        return "celery", "Celery task", "run"
    if "perform" in methods and any(each.endswith("GenericActor") for each in ancestors):
        return "dramatiq", "Dramatiq actor", "perform"
    if "on_message" in methods and any(each.endswith("ConnectionListener") for each in ancestors):
        return "stomp", "STOMP listener", "on_message"
    if "post" in methods and {each.rpartition(".")[2] for each in ancestors} & _VIEWS:
        return "webhook", "webhook", "post"
    if "create" in methods and any(each.endswith("ViewSet") for each in ancestors):
        return "webhook", "webhook", "create"
    return "", "", ""


def is_route(target: Value) -> bool:
    """Whether a decorator makes a function answer requests that change something."""
    base = target.base
    if target.ref in _ROUTE_REFS:
        return True
    if target.attr not in _ROUTES or base is None:
        return False
    unseen = not base.tag and base.function is None and base.text.rpartition(".")[2] in _APPS
    return base.tag == "web.app" or unseen


def is_lambda(names: list[str], segment: bytes) -> bool:
    """A Lambda handler has no decorator: it takes an event and a context, and looks at the event's records."""
    if len(names) != 2 or names[0] not in ("event", "_event") or names[1] not in ("context", "_context", "ctx", "_"):
        return False
    return bool(re.search(rb"Records|\.records\b|[\"']detail[\"']|process_partial_response", segment))


def is_django_webhook(name: str, names: list[str], segment: bytes) -> bool:
    """A view of Django that a provider calls; its decorators are part of ``segment``."""
    if names[:1] != ["request"]:
        return False
    posted = b"csrf_exempt" in segment or b"POST" in segment
    return bool(SIGNED.search(segment)) or (posted and bool(WEBHOOK.search(name)))
