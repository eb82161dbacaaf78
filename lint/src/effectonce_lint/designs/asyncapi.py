"""AsyncAPI 2.x and 3.0: operations that receive, their bindings, and the extension ``x-idempotency``."""

from __future__ import annotations

from effectonce_lint.python.modules import UnreadableFile

from .model import DescribedConsumer, Design, Phrase, doubles_when_repeated, is_idempotent
from .yaml_tree import YamlNode

_MAX_REFERENCES = 8  # that lead to one another, perhaps in a circle
_GUARD_FIELDS = (
    "x-idempotency",
    "x-idempotent",
    "x-dedup",
    "x-deduplication",
    "x-idempotency-key",
    "x-idempotent-consumer",
)
_EFFECT_FIELDS = ("x-effects", "x-side-effects", "x-effect", "x-sideeffects")


def is_asyncapi(root: YamlNode) -> bool:
    """Whether a document is AsyncAPI."""
    return root.kind == "map" and "asyncapi" in root.fields


def read(root: YamlNode) -> Design:
    """Read the consumers of a document. Raises `UnreadableFile` for an unknown version."""
    version = root.fields["asyncapi"]
    major = version.text.partition(".")[0]
    if major == "2":
        return _read_version_2(root)
    if major == "3":
        return _read_version_3(root)
    raise UnreadableFile(
        f"AsyncAPI {version.text or '?'} is not known here; 2.0 to 2.6 and 3.0 are", version.at.line, version.at.column
    )


def _read_version_2(root: YamlNode) -> Design:
    """AsyncAPI 2 names operations from outside: this application receives what others ``publish``."""
    design = Design()
    channels = root.get("channels")
    for name, channel in (channels.fields if channels is not None else {}).items():
        operation = channel.get("publish")
        if operation is not None:
            design.consumers.append(_make_consumer(root, operation, channel, name, name))
    return design


def _read_version_3(root: YamlNode) -> Design:
    design = Design()
    operations = root.get("operations")
    for name, operation in (operations.fields if operations is not None else {}).items():
        operation = _follow_reference(root, operation)
        action = operation.get("action")
        if action is None or action.text != "receive":
            continue
        reference = operation.get("channel")
        channel = _follow_reference(root, reference) if reference is not None else None
        address = channel.get("address") if channel is not None else None
        queue = address.text if address is not None else _last_segment(reference)
        design.consumers.append(_make_consumer(root, operation, channel, name, queue))
    return design


def _make_consumer(
    root: YamlNode, operation: YamlNode, channel: YamlNode | None, name: str, queue: str
) -> DescribedConsumer:
    """Read one receiving operation, with the extensions of its traits, its channel and its messages."""
    operation_id = operation.get("operationId")
    title = operation_id.text if operation_id is not None else name
    at = operation_id.at if operation_id is not None else operation.at
    traits = [_follow_reference(root, trait) for trait in _items_of(operation.get("traits"))]
    consumer = DescribedConsumer(title, at, queue=queue, can_declare_dedup=True)
    channels = [channel] if channel is not None else []
    for node in (operation, *traits, *channels, *_messages_of(root, operation, channel)):
        for field_name in _GUARD_FIELDS:
            guard = _extension_of(node, field_name)
            if guard is not None and consumer.dedup is None:
                consumer.dedup = _describe_guard(guard)
                consumer.key = consumer.key or guard.phrase("key", "keyLocation", "location", "source")
                consumer.retention = consumer.retention or guard.phrase("retention", "ttl", "window", "keepFor")
        for field_name in _EFFECT_FIELDS:
            effects = _extension_of(node, field_name)
            if effects is not None:
                consumer.effects += [Phrase(effect.flat_text(), effect.at) for effect in (effects.items or [effects])]
    summary = operation.phrase("summary", "description")
    if (
        not consumer.effects
        and summary is not None
        and (doubles_when_repeated(summary.text) or is_idempotent(summary.text))
    ):
        consumer.effects = [summary]
    for node in (operation, *traits):
        bindings = node.get("bindings")
        amqp = bindings.get("amqp") if bindings is not None else None
        ack = amqp.get("ack") if amqp is not None else None
        if ack is not None and ack.text.lower() == "false":
            consumer.ack = Phrase("auto", ack.at)
    if channel is not None:
        consumer.window = _retention_window(channel)
    return consumer


def _extension_of(node: YamlNode, name: str) -> YamlNode | None:
    """The extension field of exactly this name."""
    return node.fields.get(name) if node.kind == "map" else None


def _describe_guard(guard: YamlNode) -> Phrase:
    """The guard that the extension declares: its own text, or its field for the strategy or store."""
    if guard.kind == "scalar":
        return Phrase("declared" if guard.text.lower() in ("true", "yes") else guard.text, guard.at)
    switch = guard.get("enabled", "idempotent", "supported")
    if switch is not None and switch.text.lower() in ("false", "no"):
        return Phrase("none", switch.at)
    strategy = guard.phrase("strategy", "mode", "how", "store", "guard", "mechanism")
    return strategy if strategy is not None else Phrase("declared", guard.at)


def _messages_of(root: YamlNode, operation: YamlNode, channel: YamlNode | None) -> list[YamlNode]:
    """The messages that an operation receives."""
    messages = []
    single = operation.get("message")
    if single is not None:
        message = _follow_reference(root, single)
        messages += [message, *(_follow_reference(root, variant) for variant in _items_of(message.get("oneOf")))]
    messages += [_follow_reference(root, message) for message in _items_of(operation.get("messages"))]
    of_channel = channel.get("messages") if channel is not None else None
    if of_channel is not None:
        messages += [_follow_reference(root, message) for message in of_channel.fields.values()]
    return messages


def _retention_window(channel: YamlNode) -> Phrase | None:
    """How long the broker keeps a message, by the channel's bindings."""
    bindings = channel.get("bindings")
    if bindings is None:
        return None
    sqs = bindings.get("sqs")
    queue = (sqs.get("queue") or sqs) if sqs is not None else None
    seconds = queue.get("messageRetentionPeriod") if queue is not None else None
    if seconds is not None:
        return Phrase(seconds.text, seconds.at)
    kafka = bindings.get("kafka")
    topic = kafka.get("topicConfiguration") if kafka is not None else None
    milliseconds = topic.get("retention.ms") if topic is not None else None
    if milliseconds is None or not milliseconds.text.isdigit():
        return None
    return Phrase(f"{milliseconds.text}ms", milliseconds.at)


def _items_of(node: YamlNode | None) -> list[YamlNode]:
    return node.items if node is not None else []


def _last_segment(reference: YamlNode | None) -> str:
    """The name that a ``$ref`` ends in: the channel's, where the channel itself is not in the file."""
    target = reference.get("$ref") if reference is not None else None
    return target.text.rpartition("/")[2].replace("~1", "/") if target is not None else ""


def _follow_reference(root: YamlNode, node: YamlNode) -> YamlNode:
    """The node that a ``$ref`` in ``node`` leads to; ``node`` itself if it has none, or one into another document."""
    for _ in range(_MAX_REFERENCES):
        reference = node.fields.get("$ref") if node.kind == "map" else None
        if reference is None or not reference.text.startswith("#/"):
            return node
        target = root
        for part in reference.text[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            child = target.fields.get(name) if target.kind == "map" else None
            if child is None:
                return node
            target = child
        node = target
    return node
