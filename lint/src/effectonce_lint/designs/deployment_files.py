"""CloudFormation, SAM, Serverless and docker-compose: settings of queues and of their consumers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from effectonce_lint.durations import format_duration, parse_duration
from effectonce_lint.findings import Place

from .model import ConsumerTimeout, DescribedQueue, Design, Setting
from .yaml_tree import YamlNode

_LATE_ACK_VARIABLE = re.compile(r"^(?:\w*_)?(?:TASK_ACKS_LATE|ACKS_LATE)$", re.IGNORECASE)
_AUTO_ACK_VARIABLE = re.compile(
    r"^(?:\w*_)?(?:ENABLE_AUTO_COMMIT|AUTO_COMMIT_ENABLE|AUTO_ACK|AUTOACK|NO_ACK)$", re.IGNORECASE
)
_RETENTION_VARIABLE = re.compile(
    r"(?:DEDUP\w*|IDEMPOTENCY\w*|SEEN|INBOX)_(?:TTL|RETENTION|EXPIRY|EXPIRE|WINDOW)(?:_SECONDS|_SECS|_S)?$",
    re.IGNORECASE,
)
_WINDOW_VARIABLE = re.compile(
    r"(?:VISIBILITY_TIMEOUT|MESSAGE_RETENTION|QUEUE_RETENTION|REDELIVERY_WINDOW|MAX_REDELIVERY)(?:_SECONDS|_SECS|_S|_PERIOD)?$",
    re.IGNORECASE,
)
# the defaults where a file sets none
_SQS_VISIBILITY_SECONDS = 30.0
_LAMBDA_TIMEOUT_SECONDS = 3.0
_SERVERLESS_TIMEOUT_SECONDS = 6.0
_MAX_REFERENCE_LENGTH = 2_000
_MAX_TYPE_POSITION = 200  # a resource begins with its type


def is_template(root: YamlNode) -> bool:
    """Whether a document is a template of CloudFormation or SAM."""
    return (
        root.kind == "map"
        and root.get("Resources") is not None
        and (
            "AWSTemplateFormatVersion" in root.fields
            or any(
                "AWS::" in resource.flat_text()[:_MAX_TYPE_POSITION]
                for resource in (root.get("Resources") or root).fields.values()
            )
        )
    )


def is_serverless(root: YamlNode) -> bool:
    """Whether a document is a Serverless file."""
    return root.kind == "map" and "functions" in root.fields and "provider" in root.fields and "service" in root.fields


def is_compose(root: YamlNode) -> bool:
    """Whether a document is a docker-compose file."""
    services = root.get("services") if root.kind == "map" else None
    return (
        services is not None
        and services.kind == "map"
        and any(service.get("image", "build") is not None for service in services.fields.values())
    )


# -- CloudFormation and SAM


@dataclass(slots=True)
class _SqsTrigger:
    """A function of a Serverless file that reads the queue which ``source`` names."""

    name: str
    function: YamlNode
    source: YamlNode


def read_template(
    resources: YamlNode | None, triggers: Sequence[_SqsTrigger] = (), shared: YamlNode | None = None
) -> Design:
    """Read the queues of a template, with the functions that read them: those of the template, and ``triggers``.

    ``shared`` holds the settings that functions inherit: SAM's Globals, Serverless's provider.
    """
    if resources is None:
        return Design()
    queues = _read_queues(resources)
    for name, resource in resources.fields.items():
        kind = resource.get("Type")
        properties = resource.get("Properties")
        if kind is None or properties is None:
            continue
        if kind.text == "AWS::Lambda::EventSourceMapping":
            for queue in _referenced_names(properties.get("EventSourceArn"), queues):
                function_name = next(iter(_referenced_names(properties.get("FunctionName"), resources.fields)), "")
                function = resources.fields.get(function_name)
                timeout = _function_timeout(function.get("Properties") if function else None)
                queues[queue].consumers.append(ConsumerTimeout(function_name or name, resource.at, timeout))
        elif kind.text == "AWS::Serverless::Function":
            at = resources.key_places.get(name, resource.at)
            events = properties.get("Events")
            for event in events.fields.values() if events is not None else ():
                if (event.get("Type") or event).text == "SQS":
                    for queue in _referenced_names(event.get("Properties"), queues):
                        timeout = _function_timeout(properties, shared)
                        queues[queue].consumers.append(ConsumerTimeout(name, at, timeout))
    for trigger in triggers:
        for queue in _referenced_names(trigger.source, queues):
            timeout = _function_timeout(trigger.function, shared, _SERVERLESS_TIMEOUT_SECONDS)
            queues[queue].consumers.append(ConsumerTimeout(trigger.name, trigger.function.at, timeout))
    return Design(queues=list(queues.values()))


def _read_queues(resources: YamlNode) -> dict[str, DescribedQueue]:
    """The queues of a template by name; those that another one's redrive policy names are dead-letter queues."""
    queues: dict[str, DescribedQueue] = {}
    for name, resource in resources.fields.items():
        kind = resource.get("Type")
        if kind is not None and kind.text == "AWS::SQS::Queue":
            queues[name] = _make_queue(name, resource, resources.key_places.get(name, resource.at))
    for name, resource in resources.fields.items():
        properties = resource.get("Properties")
        redrive_policy = properties.get("RedrivePolicy") if properties is not None else None
        for dead_letter_queue in _referenced_names(redrive_policy, queues):
            if dead_letter_queue != name:
                queues[dead_letter_queue].is_dead_letter = True
    return queues


def _make_queue(name: str, resource: YamlNode, at: Place) -> DescribedQueue:
    properties = resource.get("Properties") or YamlNode("map", resource.at)
    visibility = properties.get("VisibilityTimeout")
    content = properties.get("ContentBasedDeduplication")
    return DescribedQueue(
        name,
        at,
        visibility=properties.number("VisibilityTimeout") if visibility is not None else _SQS_VISIBILITY_SECONDS,
        visibility_at=visibility.at if visibility is not None else None,
        has_dead_letter_queue=properties.get("RedrivePolicy") is not None,
        is_dead_letter=bool(re.search(r"dlq|dead", name, re.IGNORECASE)),
        content_dedup_at=content.at if content is not None and content.text.lower() == "true" else None,
    )


def _function_timeout(
    properties: YamlNode | None, shared: YamlNode | None = None, default: float = _LAMBDA_TIMEOUT_SECONDS
) -> float | None:
    """The timeout of a function in seconds; None where the function is not in the file."""
    if properties is None:
        return None
    for settings in (properties, shared):
        if settings is not None and settings.get("Timeout") is not None:
            return settings.number("Timeout")
    return default


def _referenced_names(node: YamlNode | None, names: Mapping[str, object]) -> list[str]:
    """Which of ``names`` a reference (`!GetAtt Orders.Arn`, `Fn::GetAtt`, `!Ref`) mentions."""
    if node is None:
        return []
    words = re.findall(r"[A-Za-z0-9]+", node.flat_text()[:_MAX_REFERENCE_LENGTH])
    return [word for word in dict.fromkeys(words) if word in names]


# -- Serverless


def read_serverless(root: YamlNode) -> Design:
    """Read the queues and functions of a Serverless file."""
    triggers: list[_SqsTrigger] = []
    functions = root.get("functions")
    for name, function in functions.fields.items() if functions is not None else ():
        events = function.get("events")
        for event in events.items if events is not None else ():
            source = event.get("sqs")
            if source is not None:
                triggers.append(_SqsTrigger(name, function, source))
    resources = root.get("resources")
    template_resources = resources.get("Resources") if resources is not None else None
    return read_template(template_resources, triggers, root.get("provider"))


# -- docker-compose


def read_compose(root: YamlNode) -> Design:
    """Read the environment variables of the services: early acks, and retentions shorter than the redelivery window."""
    design = Design()
    services = root.get("services")
    for name, service in services.fields.items() if services is not None else ():
        variables = _environment_of(service)
        for variable, (text, node) in variables.items():
            value = text.strip().lower()
            if (_LATE_ACK_VARIABLE.match(variable) and value in ("false", "0", "no")) or (
                _AUTO_ACK_VARIABLE.match(variable) and value in ("true", "1", "yes")
            ):
                design.early_acks.append(Setting(f"{variable}={text}", node.at, name))
        retentions = [entry for variable, entry in variables.items() if _RETENTION_VARIABLE.search(variable)]
        windows = [text for variable, (text, _) in variables.items() if _WINDOW_VARIABLE.search(variable)]
        for retention_text, node in retentions:
            for window_text in windows:
                retention, window = parse_duration(retention_text), parse_duration(window_text)
                if retention is not None and window is not None and retention < window:
                    problem = (
                        f"service `{name}` remembers messages for {format_duration(retention)}, "
                        f"but they can come back for {format_duration(window)}"
                    )
                    design.short_retentions.append(Setting(problem, node.at, name))
    return design


def _environment_of(service: YamlNode) -> dict[str, tuple[str, YamlNode]]:
    """The environment variables of a service, each with its value and the node that sets it."""
    environment = service.get("environment")
    if environment is None:
        return {}
    if environment.kind == "list":
        lines = [(item.text.partition("="), item) for item in environment.items]
        return {variable.strip(): (value, item) for (variable, _, value), item in lines}
    return {variable: (node.flat_text(), node) for variable, node in environment.fields.items()}
