"""CloudFormation, SAM, Serverless and docker-compose: settings of queues and of those who read them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from effectonce_lint.durations import format_duration, parse_duration
from effectonce_lint.findings import Place

from .model import DescribedQueue, Design, Setting
from .yaml_tree import YamlNode

_EARLY = re.compile(r"^(?:\w*_)?(?:TASK_ACKS_LATE|ACKS_LATE)$", re.IGNORECASE)
_AUTO = re.compile(r"^(?:\w*_)?(?:ENABLE_AUTO_COMMIT|AUTO_COMMIT_ENABLE|AUTO_ACK|AUTOACK|NO_ACK)$", re.IGNORECASE)
_KEPT = re.compile(
    r"(?:DEDUP\w*|IDEMPOTENCY\w*|SEEN|INBOX)_(?:TTL|RETENTION|EXPIRY|EXPIRE|WINDOW)(?:_SECONDS|_SECS|_S)?$",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    r"(?:VISIBILITY_TIMEOUT|MESSAGE_RETENTION|QUEUE_RETENTION|REDELIVERY_WINDOW|MAX_REDELIVERY)(?:_SECONDS|_SECS|_S|_PERIOD)?$",
    re.IGNORECASE,
)


def is_template(root: YamlNode) -> bool:
    """CloudFormation or SAM."""
    return (
        root.kind == "map"
        and root.get("Resources") is not None
        and (
            "AWSTemplateFormatVersion" in root.fields
            or any("AWS::" in each.flat_text()[:200] for each in (root.get("Resources") or root).fields.values())
        )
    )


def is_serverless(root: YamlNode) -> bool:
    return root.kind == "map" and "functions" in root.fields and "provider" in root.fields and "service" in root.fields


def is_compose(root: YamlNode) -> bool:
    services = root.get("services") if root.kind == "map" else None
    return (
        services is not None
        and services.kind == "map"
        and any(each.get("image", "build") is not None for each in services.fields.values())
    )


# -- CloudFormation and SAM


def read_template(
    resources: YamlNode | None,
    functions: list[tuple[str, YamlNode, YamlNode | None]] | None = None,
    shared: YamlNode | None = None,
) -> Design:
    """Queues of a template, with the functions that read them: of the template, and those given.

    ``shared`` holds what all functions have unless they say otherwise: SAM's Globals, Serverless's provider.
    """
    design = Design()
    if resources is None:
        resources = YamlNode("map", functions[0][1].at) if functions else None
    if resources is None:
        return design
    queues: dict[str, DescribedQueue] = {}
    for name, resource in resources.fields.items():
        kind = resource.get("Type")
        if kind is not None and kind.text == "AWS::SQS::Queue":
            queues[name] = _make_queue(name, resource, resources.keys.get(name, resource.at))
    for name, resource in resources.fields.items():
        redrive = resource.get("Properties") and (resource.get("Properties") or resource).get("RedrivePolicy")
        for target in _referenced_names(redrive, queues) if redrive is not None else ():
            if target != name:
                queues[target].is_dead_letter = True
    for name, resource in resources.fields.items():
        kind = resource.get("Type")
        properties = resource.get("Properties")
        if kind is None or properties is None:
            continue
        if kind.text == "AWS::Lambda::EventSourceMapping":
            for target in _referenced_names(properties.get("EventSourceArn"), queues):
                function = next(iter(_referenced_names(properties.get("FunctionName"), resources.fields)), "")
                known = resources.fields.get(function)
                queues[target].consumers.append(
                    (function or name, resource.at, _function_timeout(known.get("Properties") if known else None))
                )
        elif kind.text == "AWS::Serverless::Function":
            events = properties.get("Events")
            for event in events.fields.values() if events is not None else ():
                if (event.get("Type") or event).text == "SQS":
                    for target in _referenced_names(event.get("Properties"), queues):
                        queues[target].consumers.append(
                            (name, resources.keys.get(name, resource.at), _function_timeout(properties, shared))
                        )
    for function, at, source in functions or ():
        for target in _referenced_names(source, queues):
            queues[target].consumers.append((function, at.at, _function_timeout(at, shared, 6.0)))
    design.queues = list(queues.values())
    return design


def _make_queue(name: str, resource: YamlNode, at: Place) -> DescribedQueue:
    properties = resource.get("Properties") or YamlNode("map", resource.at)
    visibility = properties.get("VisibilityTimeout")
    content = properties.get("ContentBasedDeduplication")
    return DescribedQueue(
        name,
        at,
        visibility=properties.number("VisibilityTimeout") if visibility is not None else 30.0,
        visibility_at=visibility.at if visibility is not None else None,
        retention=properties.number("MessageRetentionPeriod"),
        dead_letter=properties.get("RedrivePolicy") is not None,
        is_dead_letter=bool(re.search(r"dlq|dead", name, re.IGNORECASE)),
        content_dedup=content.at if content is not None and content.text.lower() == "true" else None,
    )


def _function_timeout(
    properties: YamlNode | None, shared: YamlNode | None = None, default: float = 3.0
) -> float | None:
    if properties is None:
        return None
    for each in (properties, shared):
        if each is not None and each.get("Timeout") is not None:
            return each.number("Timeout")
    return default


def _referenced_names(node: YamlNode | None, known: Mapping[str, object]) -> list[str]:
    """Which of the known names a reference (`!GetAtt Orders.Arn`, `Fn::GetAtt`, `!Ref`) means."""
    if node is None:
        return []
    words = re.findall(r"[A-Za-z0-9]+", node.flat_text()[:2000])
    return [name for name in dict.fromkeys(words) if name in known]


# -- Serverless


def read_serverless(root: YamlNode) -> Design:
    functions: list[tuple[str, YamlNode, YamlNode | None]] = []
    listed = root.get("functions")
    for name, function in listed.fields.items() if listed is not None else ():
        events = function.get("events")
        for event in events.items if events is not None else ():
            source = event.get("sqs")
            if source is not None:
                functions.append((name, function, source))
    resources = root.get("resources")
    inner = resources.get("Resources") if resources is not None else None
    return read_template(inner, functions, root.get("provider"))


# -- docker-compose


def read_compose(root: YamlNode) -> Design:
    design = Design()
    services = root.get("services")
    for name, service in services.fields.items() if services is not None else ():
        variables = _environment_of(service)
        for key, (text, node) in variables.items():
            value = text.strip().lower()
            if (_EARLY.match(key) and value in ("false", "0", "no")) or (
                _AUTO.match(key) and value in ("true", "1", "yes")
            ):
                design.early_acks.append(Setting(f"{key}={text}", node.at, name))
        kept = [(text, node) for key, (text, node) in variables.items() if _KEPT.search(key)]
        windows = [(text, node) for key, (text, node) in variables.items() if _WINDOW.search(key)]
        for text, node in kept:
            for other, _ in windows:
                have, need = parse_duration(text), parse_duration(other)
                if have is not None and need is not None and have < need:
                    fault = (
                        f"service `{name}` remembers messages for {format_duration(have)}, "
                        f"but they can come back for {format_duration(need)}"
                    )
                    design.short.append(Setting(fault, node.at, name))
    return design


def _environment_of(service: YamlNode) -> dict[str, tuple[str, YamlNode]]:
    node = service.get("environment")
    if node is None:
        return {}
    if node.kind == "list":
        pairs = [(each.text.partition("="), each) for each in node.items]
        return {key.strip(): (value, each) for (key, _, value), each in pairs}
    return {key: (value.flat_text(), value) for key, value in node.fields.items()}
