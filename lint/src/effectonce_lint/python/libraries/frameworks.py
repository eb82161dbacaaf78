"""Frameworks: the decorators, base classes and routes that make a function a consumer."""

from __future__ import annotations

import re

from effectonce_lint.python.values import Value
from effectonce_lint.word_lists import word_set

#: family: the name of one of its consumers, for messages, and the dotted names of the decorators that make one.
_DECORATORS = {
    "celery": ("Celery task", word_set("celery.shared_task celery.task celery.decorators.task celery.app.shared_task")),
    "dramatiq": ("Dramatiq actor", word_set("dramatiq.actor")),
    "rq": ("rq job", word_set("rq.decorators.job rq.job django_rq.job")),
    "django": ("Django task", word_set("django.tasks.task django_tasks.task")),
    "huey": ("Huey task", word_set("huey.contrib.djhuey.task huey.contrib.djhuey.db_task")),
    "pubsub": ("Cloud Event function", word_set("functions_framework.cloud_event")),
    "nameko": ("Nameko event handler", word_set("nameko.events.event_handler")),
    "taskiq": ("taskiq task", word_set("taskiq.async_shared_broker.task")),
    "agent": (
        "agent's tool",
        word_set(
            "langchain.tools.tool langchain.agents.tool langchain_core.tools.tool agents.function_tool"
            " crewai.tools.tool smolagents.tool llama_index.core.tools.tool strands.tool claude_agent_sdk.tool"
        ),
    ),
    "webhook": (
        "webhook",
        word_set("djstripe.webhooks.handler djstripe.webhooks.handler_all djstripe.event_handlers.djstripe_receiver"),
    ),
}
BY_REF = {ref: (family, kind) for family, (kind, refs) in _DECORATORS.items() for ref in refs}

DECLARED = ("declared", "consumer")
"""The family and kind of a consumer that the project declares to be one."""

#: The same as `_DECORATORS` for decorators that are methods: by the tag of the object, and the name of the method.
_BY_METHOD = {
    ("celery.app", "task"): ("celery", "Celery task"),
    ("faststream.broker", "subscriber"): ("faststream", "FastStream subscriber"),
    ("taskiq.broker", "task"): ("taskiq", "taskiq task"),
    ("procrastinate.app", "task"): ("procrastinate", "Procrastinate task"),
    ("huey", "task"): ("huey", "Huey task"),
    ("faust.app", "agent"): ("faust", "Faust agent"),
    ("mcp.server", "tool"): ("agent", "agent's tool"),
    ("eo.worker", "handler"): ("effectonce", "worker's handler"),
    ("babelqueue", "handler"): ("babelqueue", "BabelQueue handler"),
    ("azure.app", "service_bus_queue_trigger"): ("servicebus", "Service Bus function"),
    ("azure.app", "service_bus_topic_trigger"): ("servicebus", "Service Bus function"),
    ("azure.app", "queue_trigger"): ("servicebus", "Storage Queue function"),
    ("azure.app", "event_hub_message_trigger"): ("servicebus", "Event Hub function"),
}
#: Classes that are consumers: family, kind, the method that handles a message, and how the names of their bases end.
_CONSUMER_CLASSES = (
    ("celery", "Celery task", "run", ("celery.Task", "task.Task", "app.Task")),
    ("dramatiq", "Dramatiq actor", "perform", ("GenericActor",)),
    ("stomp", "STOMP listener", "on_message", ("ConnectionListener",)),
    ("agent", "agent's tool", "_run", ("tools.BaseTool", "base.BaseTool")),
)
_HANDLING_METHODS = ("consume", "consume_batch", "handle_message", "process_message", "on_message")
"""Abstract methods by which a project's own worker hands over messages, in the order of preference."""
QUEUE_WORKER = re.compile(r"Queue|Worker$|Consumer$|Listener$|Subscriber$")
"""Names of such base classes."""
_CELERY_ARGUMENTS = word_set("bind acks_late autoretry_for max_retries default_retry_delay")
_ROUTE_DECORATORS = word_set("post put patch route api_route")
_ROUTE_REFS = word_set(
    "litestar.post litestar.put litestar.patch bottle.post bottle.put rest_framework.decorators.api_view"
)
_APP_NAMES = word_set("app router api bp blueprint webhooks")
_VIEWS = word_set(
    "APIView View GenericAPIView MethodView ViewSet HTTPEndpoint GenericViewSet Resource RequestHandler HTTPMethodView"
)

WEBHOOK_NAME = re.compile(
    r"web_?hook|/hooks?(?:/|$)|/callbacks?(?:/|$)|/ipn(?:/|$)|_hook(?:$|\.|_view)|^hook_|(?:^|_)ipn(?:_|$)"
    r"|notif(?:y|ications?)/?$|(?<!auth)(?<!login)(?<!sso)_callback(?:$|_view)",
    re.IGNORECASE,
)
"""Paths and names of the endpoints that a provider calls."""
SIGNATURE_CHECK = re.compile(
    rb"construct_event|svix|X-Hub-Signature|Stripe-Signature|HTTP_STRIPE_SIGNATURE|X-Shopify-Hmac|X-GitHub-Event"
    rb"|verify_webhook|verify_from_\w+|Notifications?Token|webhook_signature|compare_digest|[\"']\w[\w-]*[-_]signature\b|\b(?:verif|check|valid)\w*_signature",
    re.IGNORECASE,
)
"""Code that checks a sender's signature."""


def consumer_of_decorator(target: Value, arguments: set[str]) -> tuple[str, str]:
    """The family and kind of consumer that a decorator makes; empty if it makes none.

    ``arguments``: the names of the decorator's arguments.
    """
    if consumer := BY_REF.get(target.ref):
        return consumer
    base = target.base
    if base is None:
        return "", ""
    if consumer := _BY_METHOD.get((base.tag, target.attr)):
        return consumer
    if base.tag or target.function is not None:
        return "", ""
    # the application object comes from a file that is not in the project, so its name decides
    origin = f"{base.ref}.{base.text}".lower()
    if target.attr == "task" and ("celery" in origin or arguments & _CELERY_ARGUMENTS):
        return "celery", "Celery task"
    if target.attr == "task" and "procrastinate" in origin:
        return "procrastinate", "Procrastinate task"
    if target.attr == "task" and "broker" in origin:
        return "taskiq", "taskiq task"
    if target.attr == "subscriber" and ("broker" in origin or "router" in origin):
        return "faststream", "FastStream subscriber"
    return "", ""


def consumer_of_class(ancestors: list[str], methods: set[str]) -> tuple[str, str, str]:
    """The family and kind of consumer that a class is, and its method that handles messages; empty if it is none.

    A view counts only if its route is a webhook, which the caller checks.
    """
    for family, kind, method, base_names in _CONSUMER_CLASSES:
        if method in methods and any(name.endswith(base_names) for name in ancestors):
            return family, kind, method
    if "post" in methods and {name.rpartition(".")[2] for name in ancestors} & _VIEWS:
        return "webhook", "webhook", "post"
    if "create" in methods and any(name.endswith("ViewSet") for name in ancestors):
        return "webhook", "webhook", "create"
    return "", "", ""


def handling_method(methods: frozenset[str]) -> str:
    """The method by which a base class of the project hands messages to its derived classes; "" if it has none."""
    return next((name for name in _HANDLING_METHODS if name in methods), "")


def is_route(target: Value) -> bool:
    """Whether a decorator makes a function the handler of requests that change something."""
    base = target.base
    if target.ref in _ROUTE_REFS:
        return True
    if target.attr not in _ROUTE_DECORATORS or base is None:
        return False
    is_named_app = not base.tag and base.function is None and base.text.rpartition(".")[2] in _APP_NAMES
    return base.tag == "web.app" or is_named_app


def is_lambda(parameters: list[str], segment: bytes) -> bool:
    """Whether a function without a decorator is a Lambda handler: it takes event and context, and reads the records.

    ``segment`` is the source of the function.
    """
    match parameters:
        case ["event" | "_event", "context" | "_context" | "ctx" | "_"]:
            return bool(re.search(rb"Records|\.records\b|[\"']detail[\"']|process_partial_response", segment))
    return False


def is_django_webhook(name: str, parameters: list[str], segment: bytes) -> bool:
    """Whether a function is a view of Django that a provider calls. ``segment`` is its source, with its decorators."""
    if parameters[:1] != ["request"]:
        return False
    handles_post = b"csrf_exempt" in segment or b"POST" in segment
    return bool(SIGNATURE_CHECK.search(segment)) or (handles_post and bool(WEBHOOK_NAME.search(name)))
