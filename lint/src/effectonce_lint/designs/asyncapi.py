"""AsyncAPI 2.x and 3.0: operations that receive, their bindings, and the extension ``x-idempotency``."""

from __future__ import annotations

from effectonce_lint.python.modules import UnreadableFile

from .model import DescribedConsumer, Design, Phrase, doubles_when_repeated, is_idempotent
from .yaml_tree import YamlNode

_GUARDS = ("x-idempotency", "x-idempotent", "x-dedup", "x-deduplication", "x-idempotency-key", "x-idempotent-consumer")
_EFFECTS = ("x-effects", "x-side-effects", "x-effect", "x-sideeffects")


def is_asyncapi(root: YamlNode) -> bool:
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
    """In AsyncAPI 2 the names are seen from outside: what others ``publish``, this application receives."""
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
    named = operation.get("operationId")
    title = named.text if named is not None else name
    parents = [operation, *(_follow_reference(root, each) for each in _items_of(operation.get("traits")))]
    consumer = DescribedConsumer(title, operation.at if named is None else named.at, queue=queue, silent=True)
    for holder in (*parents, *([channel] if channel is not None else []), *_messages_of(root, operation, channel)):
        for word in _GUARDS:
            said = _field_of(holder, word)
            if said is not None and consumer.dedup is None:
                consumer.dedup = _describe_guard(said)
                consumer.key = consumer.key or said.phrase("key", "keyLocation", "location", "source")
                consumer.retention = consumer.retention or said.phrase("retention", "ttl", "window", "keepFor")
        for word in _EFFECTS:
            said = _field_of(holder, word)
            if said is not None:
                consumer.effects += [Phrase(each.flat_text(), each.at) for each in (said.items or [said])]
    told = operation.phrase("summary", "description")
    if not consumer.effects and told is not None and (doubles_when_repeated(told.text) or is_idempotent(told.text)):
        consumer.effects = [told]
    for holder in parents:
        bindings = holder.get("bindings")
        amqp = bindings.get("amqp") if bindings is not None else None
        ack = amqp.get("ack") if amqp is not None else None
        if ack is not None and ack.text.lower() == "false":
            consumer.ack = Phrase("auto", ack.at)
    if channel is not None:
        consumer.window = _retention_window(channel)
    return consumer


def _field_of(node: YamlNode, name: str) -> YamlNode | None:
    return node.fields.get(name) if node.kind == "map" else None


def _describe_guard(said: YamlNode) -> Phrase:
    """What the extension says: a word, or what its fields say about strategy and store."""
    if said.kind == "scalar":
        return Phrase("declared" if said.text.lower() in ("true", "yes") else said.text, said.at)
    switch = said.get("enabled", "idempotent", "supported")
    if switch is not None and switch.text.lower() in ("false", "no"):
        return Phrase("none", switch.at)
    strategy = said.phrase("strategy", "mode", "how", "store", "guard", "mechanism")
    return strategy if strategy is not None else Phrase("declared", said.at)


def _messages_of(root: YamlNode, operation: YamlNode, channel: YamlNode | None) -> list[YamlNode]:
    out = []
    single = operation.get("message")
    if single is not None:
        found = _follow_reference(root, single)
        out.append(found)
        out += [_follow_reference(root, each) for each in _items_of(found.get("oneOf"))]
    for each in _items_of(operation.get("messages")):
        out.append(_follow_reference(root, each))
    messages = channel.get("messages") if channel is not None else None
    for each in messages.fields.values() if messages is not None else ():
        out.append(_follow_reference(root, each))
    return out


def _retention_window(channel: YamlNode) -> Phrase | None:
    """How long the broker keeps a message, by the channel's bindings."""
    bindings = channel.get("bindings")
    if bindings is None:
        return None
    sqs = bindings.get("sqs")
    queue = (sqs.get("queue") or sqs) if sqs is not None else None
    kept = queue.get("messageRetentionPeriod") if queue is not None else None
    if kept is not None:
        return Phrase(kept.text, kept.at)
    kafka = bindings.get("kafka")
    topic = kafka.get("topicConfiguration") if kafka is not None else None
    kept = topic.get("retention.ms") if topic is not None else None
    return Phrase(f"{kept.text}ms", kept.at) if kept is not None and kept.text.isdigit() else None


def _items_of(node: YamlNode | None) -> list[YamlNode]:
    return node.items if node is not None else []


def _last_segment(reference: YamlNode | None) -> str:
    target = reference.get("$ref") if reference is not None else None
    return target.text.rpartition("/")[2].replace("~1", "/") if target is not None else ""


def _follow_reference(root: YamlNode, node: YamlNode) -> YamlNode:
    """What a ``$ref`` into the same document means; itself where it is none, or leads in a circle."""
    for _ in range(8):
        reference = node.fields.get("$ref") if node.kind == "map" else None
        if reference is None or not reference.text.startswith("#/"):
            return node
        target = root
        for part in reference.text[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            found = target.fields.get(name) if target.kind == "map" else None
            if found is None:
                return node
            target = found
        node = target
    return node
