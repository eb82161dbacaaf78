"""Plain designs in YAML or JSON: lists of consumers, or components and the connections between them."""

from __future__ import annotations

import re

from effectonce_lint.word_lists import word_set

from .model import DescribedConsumer, Design, Phrase, says_none
from .yaml_tree import YamlNode, walk_fields

_LISTS = word_set(
    "consumers consumer subscribers message_consumers queue_consumers workers handlers message_handlers"
    " event_handlers listeners consumes subscribes subscriptions"
)
_NAMES = word_set("name id consumer handler worker service title component")
_QUEUES = word_set(
    "queue topic stream channel source consumes subscribes subscribes_to listens_to from input subscription event"
    " events trigger reads_from"
)
_READS = word_set("consumes subscribes subscribes_to listens_to reads_from subscription")
_EFFECTS = word_set(
    "effects effect side_effects side_effect actions action does writes calls operations steps output outputs"
    " performs on_message"
)
_DEDUP = word_set(
    "dedup deduplication dedupe idempotency idempotent idempotency_key guard inbox duplicate_handling duplicates"
    " exactly_once idempotence on_duplicate"
)
_KEYS = word_set("key dedup_key idempotency_key message_key dedupe_key")
_ACKS = word_set("ack ack_mode acknowledge acknowledgement acknowledgment acks ack_policy commit acking")
_RETENTIONS = word_set("dedup_retention dedup_ttl retention ttl idempotency_ttl remember_for dedup_window keep_for")
_WINDOWS = word_set(
    "redelivery_window queue_retention message_retention retry_window redelivery max_redelivery visibility_timeout"
)
_QUEUE_KINDS = re.compile(
    r"queue|topic|stream|kafka|sqs|sns|rabbit|pub.?sub|event.?bus|message.?bus|broker|nats|service.?bus|kinesis|webhook",
    re.IGNORECASE,
)
_CONSUMER_KINDS = re.compile(
    r"consumer|worker|handler|subscriber|lambda|function|listener|processor|service", re.IGNORECASE
)
_WORDS = re.compile(
    rb"(?:consumers?|consumes|subscribers|workers|handlers|listeners|components|nodes|elements)\"?\s*:",
    re.IGNORECASE,
)
_ABOUT = re.compile(rb"queue|topic|stream|broker|kafka|sqs|rabbit|dedup|idempot", re.IGNORECASE)


def looks_like_design(content: bytes) -> bool:
    return bool(_WORDS.search(content) and _ABOUT.search(content))


def read(root: YamlNode) -> Design:
    design = Design()
    components, arrows = _collect_components(root)
    queues = {**{key: node for key, node in components.items() if _is_queue(key, node)}, **_collect_queues(root)}
    for name, at, node in [("", root.at, root), *walk_fields(root)]:
        del at
        if name.lower().replace("-", "_") in _LISTS:
            design.consumers += _read_list(node, queues)
    connected = _consumers_by_arrow(components, arrows)
    known = {consumer.at for consumer in (*design.consumers, *connected)}
    design.consumers += [each for each in _consumers_by_field(components, queues) if each.at not in known]
    design.consumers += connected
    return design


def _collect_queues(root: YamlNode) -> dict[str, YamlNode]:
    """Queues that are described by themselves: their retention is the consumer's window."""
    out: dict[str, YamlNode] = {}
    for name, _, node in walk_fields(root):
        if name.lower() in ("queues", "topics", "streams", "channels"):
            out.update(node.fields)
            for each in node.items:
                named = each.get(*_NAMES)
                if named is not None:
                    out[named.text] = each
    return out


def _read_list(node: YamlNode, queues: dict[str, YamlNode]) -> list[DescribedConsumer]:
    entries: list[tuple[str, YamlNode]] = []
    if node.kind == "list":
        for number, each in enumerate(node.items, 1):
            entries.append((f"#{number}", each))
    elif node.kind == "map":
        entries = list(node.fields.items())
    return [consumer for name, each in entries if (consumer := _read_consumer(name, each, queues)) is not None]


def _read_consumer(name: str, node: YamlNode, queues: dict[str, YamlNode]) -> DescribedConsumer | None:
    if node.kind != "map":
        return None
    queue = node.phrase(*_QUEUES)
    effects = node.get(*_EFFECTS)
    if queue is None and effects is None:
        return None
    named = node.get("name") or node.get(*_NAMES)
    if named is not None and named.kind == "scalar":
        name = named.text
    consumer = DescribedConsumer(
        name, named.at if named is not None else node.at, queue=queue.text if queue is not None else ""
    )
    if effects is not None:
        consumer.effects = _effects_of(effects)
    dedup = node.get(*_DEDUP)
    if dedup is not None:
        consumer.dedup = _phrase_of(dedup)
        if dedup.kind == "map":
            consumer.key = dedup.phrase(*_KEYS)
            consumer.retention = dedup.phrase(*_RETENTIONS)
    consumer.key = consumer.key or node.phrase(*_KEYS)
    consumer.ack = node.phrase(*_ACKS)
    consumer.retention = consumer.retention or node.phrase(*_RETENTIONS)
    consumer.window = node.phrase(*_WINDOWS)
    described = queues.get(consumer.queue)
    if described is not None:
        consumer.window = consumer.window or described.phrase("retention", *_WINDOWS)
        consumer.ack = consumer.ack or described.phrase(*_ACKS)
    return consumer


def _effects_of(node: YamlNode) -> list[Phrase]:
    """Each effect by its words; one that says of itself that it is idempotent is none."""
    out = []
    for each in node.items or [node]:
        if each.kind == "map":
            idempotent = each.get("idempotent", "idempotency_key", "upsert")
            if idempotent is not None and not says_none(idempotent.flat_text()):
                continue
        out.append(Phrase(each.flat_text(), each.at))
    return out


def _phrase_of(node: YamlNode) -> Phrase:
    if node.kind == "scalar":
        return Phrase("declared" if node.text.lower() in ("true", "yes") else node.text, node.at)
    switch = node.get("enabled", "idempotent")
    if switch is not None and says_none(switch.text):
        return Phrase("none", switch.at)
    return Phrase(node.flat_text() or "declared", node.at)


# -- components and connections


_Arrow = tuple[str, str, YamlNode]


def _collect_components(root: YamlNode) -> tuple[dict[str, YamlNode], list[_Arrow]]:
    """Components by their id, and the arrows between them."""
    components: dict[str, YamlNode] = {}
    arrows: list[_Arrow] = []
    for name, _, node in walk_fields(root):
        low = name.lower()
        if low in ("components", "nodes", "elements", "services"):
            for key, each in node.fields.items():
                components.setdefault(key, each)
            for each in node.items:
                named = each.get("id", "name", "key")
                if named is not None:
                    components.setdefault(named.text, each)
        elif low in ("connections", "edges", "links", "flows", "relationships"):
            for each in node.items:
                tail, head = each.phrase("from", "source", "start"), each.phrase("to", "target", "end", "destination")
                if tail is not None and head is not None:
                    arrows.append((tail.text, head.text, each))
    return components, arrows


def _consumers_by_field(components: dict[str, YamlNode], queues: dict[str, YamlNode]) -> list[DescribedConsumer]:
    """Components that say themselves what they consume."""
    return [
        consumer
        for key, node in components.items()
        if key not in queues
        and node.get(*_READS) is not None
        and _may_consume(node)
        and (consumer := _read_consumer(key, node, queues)) is not None
    ]


def _may_consume(component: YamlNode) -> bool:
    kind = component.phrase("type", "kind", "role")
    return kind is None or bool(_CONSUMER_KINDS.search(kind.text))


def _consumers_by_arrow(components: dict[str, YamlNode], arrows: list[_Arrow]) -> list[DescribedConsumer]:
    """Who stands behind a queue consumes it."""
    queues = {key for key, node in components.items() if _is_queue(key, node)}
    out: list[DescribedConsumer] = []
    for start, end, arrow in arrows:
        component = components.get(end)
        if start not in queues or component is None or end in queues or not _may_consume(component):
            continue
        consumer = _read_consumer(end, component, {}) or DescribedConsumer(end, component.at)
        consumer.queue = start
        label = arrow.phrase("dedup", "idempotent", "idempotency", "label", "description")
        if (
            consumer.dedup is None
            and label is not None
            and re.search(r"dedup|idempot|inbox|once", label.text, re.IGNORECASE)
        ):
            consumer.dedup = label
        if (
            consumer.dedup is None
            and (properties := component.get("properties", "config", "attributes", "settings")) is not None
        ):
            told = properties.get(*_DEDUP)
            consumer.dedup = _phrase_of(told) if told is not None else None
        for other, target, after in arrows:
            if other == end and target not in queues:
                said = after.phrase("label", "action", "description", "operation", "effect")
                text = f"{said.text if said is not None else ''} {target}".strip()
                consumer.effects.append(Phrase(text, said.at if said is not None else after.at))
        named = component.get("name", "title") or component.get("id")
        if named is not None:
            consumer.name, consumer.at = named.text, named.at
        out.append(consumer)
    return out


def _is_queue(key: str, node: YamlNode) -> bool:
    kind = node.phrase("type", "kind", "role")
    return bool(_QUEUE_KINDS.search(kind.text)) if kind is not None else bool(_QUEUE_KINDS.search(key))
