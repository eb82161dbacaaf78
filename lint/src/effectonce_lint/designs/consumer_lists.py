"""Plain designs in YAML or JSON: lists of consumers, or components and the connections between them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from effectonce_lint.word_lists import word_set

from .model import DescribedConsumer, Design, Phrase, says_none
from .yaml_tree import YamlNode, walk_fields

_LIST_FIELDS = word_set(
    "consumers consumer subscribers message_consumers queue_consumers workers handlers message_handlers"
    " event_handlers listeners consumes subscribes subscriptions"
)
_NAME_FIELDS = word_set("name id consumer handler worker service title component")
_QUEUE_FIELDS = word_set(
    "queue topic stream channel source consumes subscribes subscribes_to listens_to from input subscription event"
    " events trigger reads_from"
)
_SUBSCRIPTION_FIELDS = word_set("consumes subscribes subscribes_to listens_to reads_from subscription")
_EFFECT_FIELDS = word_set(
    "effects effect side_effects side_effect actions action does writes calls operations steps output outputs"
    " performs on_message"
)
_DEDUP_FIELDS = word_set(
    "dedup deduplication dedupe idempotency idempotent idempotency_key guard inbox duplicate_handling duplicates"
    " exactly_once idempotence on_duplicate"
)
_KEY_FIELDS = word_set("key dedup_key idempotency_key message_key dedupe_key")
_ACK_FIELDS = word_set("ack ack_mode acknowledge acknowledgement acknowledgment acks ack_policy commit acking")
_RETENTION_FIELDS = word_set(
    "dedup_retention dedup_ttl retention ttl idempotency_ttl remember_for dedup_window keep_for"
)
_WINDOW_FIELDS = word_set(
    "redelivery_window queue_retention message_retention retry_window redelivery max_redelivery visibility_timeout"
)
_QUEUE_KIND = re.compile(
    r"queue|topic|stream|kafka|sqs|sns|rabbit|pub.?sub|event.?bus|message.?bus|broker|nats|service.?bus|kinesis|webhook",
    re.IGNORECASE,
)
_CONSUMER_KIND = re.compile(
    r"consumer|worker|handler|subscriber|lambda|function|listener|processor|service", re.IGNORECASE
)
_GUARD_WORD = re.compile(r"dedup|idempot|inbox|once", re.IGNORECASE)
_LIST_IN_BYTES = re.compile(
    rb"(?:consumers?|consumes|subscribers|workers|handlers|listeners|components|nodes|elements)\"?\s*:",
    re.IGNORECASE,
)
_MESSAGING_IN_BYTES = re.compile(rb"queue|topic|stream|broker|kafka|sqs|rabbit|dedup|idempot", re.IGNORECASE)


def looks_like_design(content: bytes) -> bool:
    """Whether a file has a list of consumers and is about messages, judged without parsing it."""
    return bool(_LIST_IN_BYTES.search(content) and _MESSAGING_IN_BYTES.search(content))


def read(root: YamlNode) -> Design:
    """Read the consumers of a document: from its lists, and from its components."""
    design = Design()
    components, arrows = _collect_components(root)
    queues = {**{key: node for key, node in components.items() if _is_queue(key, node)}, **_collect_queues(root)}
    for name, node in [("", root), *walk_fields(root)]:
        if name.lower().replace("-", "_") in _LIST_FIELDS:
            design.consumers += _read_list(node, queues)
    connected = _consumers_by_arrow(components, arrows)
    places = {consumer.at for consumer in (*design.consumers, *connected)}
    design.consumers += [consumer for consumer in _consumers_by_field(components, queues) if consumer.at not in places]
    design.consumers += connected
    return design


def _collect_queues(root: YamlNode) -> dict[str, YamlNode]:
    """The queues that a document lists by name. Their retention is the redelivery window of their consumers."""
    queues: dict[str, YamlNode] = {}
    for name, node in walk_fields(root):
        if name.lower() in ("queues", "topics", "streams", "channels"):
            queues.update(node.fields)
            for item in node.items:
                name_node = item.get(*_NAME_FIELDS)
                if name_node is not None:
                    queues[name_node.text] = item
    return queues


def _read_list(node: YamlNode, queues: dict[str, YamlNode]) -> list[DescribedConsumer]:
    """Read the consumers of a list or a mapping; those of a list without a name are numbered."""
    numbered = [(f"#{number}", item) for number, item in enumerate(node.items, 1)]
    entries = [*numbered, *node.fields.items()]  # one of them is empty
    return [consumer for name, item in entries if (consumer := _read_consumer(name, item, queues)) is not None]


def _read_consumer(name: str, node: YamlNode, queues: dict[str, YamlNode]) -> DescribedConsumer | None:
    """Read a consumer; None where the node has neither a queue nor effects."""
    if node.kind != "map":
        return None
    queue = node.phrase(*_QUEUE_FIELDS)
    effect_nodes = node.get(*_EFFECT_FIELDS)
    if queue is None and effect_nodes is None:
        return None
    name_node = node.get("name") or node.get(*_NAME_FIELDS)
    if name_node is not None and name_node.kind == "scalar":
        name = name_node.text
    queue_node = node.get(*_QUEUE_FIELDS)
    consumer = DescribedConsumer(
        name,
        name_node.at if name_node is not None else node.at,
        queue=queue.text if queue is not None else "",
        # a service that lists its consumers, each with its queue, has no effects of its own
        names_effects=queue_node is None or not any(item.kind == "map" for item in queue_node.items),
    )
    if effect_nodes is not None:
        consumer.effects = _effects_of(effect_nodes)
    dedup = node.get(*_DEDUP_FIELDS)
    if dedup is not None:
        consumer.dedup = _phrase_of(dedup)
        if dedup.kind == "map":
            consumer.key = dedup.phrase(*_KEY_FIELDS)
            consumer.retention = dedup.phrase(*_RETENTION_FIELDS)
    consumer.key = consumer.key or node.phrase(*_KEY_FIELDS)
    consumer.ack = node.phrase(*_ACK_FIELDS)
    consumer.retention = consumer.retention or node.phrase(*_RETENTION_FIELDS)
    consumer.window = node.phrase(*_WINDOW_FIELDS)
    queue_node = queues.get(consumer.queue)
    if queue_node is not None:
        consumer.window = consumer.window or queue_node.phrase("retention", *_WINDOW_FIELDS)
        consumer.ack = consumer.ack or queue_node.phrase(*_ACK_FIELDS)
    return consumer


def _effects_of(node: YamlNode) -> list[Phrase]:
    """The effects of a consumer, without those that are declared idempotent."""
    effects = []
    for item in node.items or [node]:
        if item.kind == "map":
            idempotent = item.get("idempotent", "idempotency_key", "upsert")
            if idempotent is not None and not says_none(idempotent.flat_text()):
                continue
        effects.append(Phrase(item.flat_text(), item.at))
    return effects


def _phrase_of(node: YamlNode) -> Phrase:
    """The guard that a field declares: "none", "declared", or its own text."""
    if node.kind == "scalar":
        return Phrase("declared" if node.text.lower() in ("true", "yes") else node.text, node.at)
    switch = node.get("enabled", "idempotent")
    if switch is not None and says_none(switch.text):
        return Phrase("none", switch.at)
    return Phrase(node.flat_text() or "declared", node.at)


# -- components and connections


@dataclass(slots=True)
class _ComponentArrow:
    """A connection from one component to another, by their ids."""

    start: str
    end: str
    node: YamlNode


def _collect_components(root: YamlNode) -> tuple[dict[str, YamlNode], list[_ComponentArrow]]:
    """Components by their id, and the arrows between them."""
    components: dict[str, YamlNode] = {}
    arrows: list[_ComponentArrow] = []
    for name, node in walk_fields(root):
        lower_name = name.lower()
        if lower_name in ("components", "nodes", "elements", "services"):
            for key, item in node.fields.items():
                components.setdefault(key, item)
            for item in node.items:
                id_node = item.get("id", "name", "key")
                if id_node is not None:
                    components.setdefault(id_node.text, item)
        elif lower_name in ("connections", "edges", "links", "flows", "relationships"):
            for item in node.items:
                start, end = item.phrase("from", "source", "start"), item.phrase("to", "target", "end", "destination")
                if start is not None and end is not None:
                    arrows.append(_ComponentArrow(start.text, end.text, item))
    return components, arrows


def _consumers_by_field(components: dict[str, YamlNode], queues: dict[str, YamlNode]) -> list[DescribedConsumer]:
    """The components that have a field for what they consume."""
    return [
        consumer
        for key, node in components.items()
        if key not in queues
        and node.get(*_SUBSCRIPTION_FIELDS) is not None
        and _may_consume(node)
        and (consumer := _read_consumer(key, node, queues)) is not None
    ]


def _may_consume(component: YamlNode) -> bool:
    """Whether a component is of a kind that can consume messages, or its kind is not given."""
    kind = component.phrase("type", "kind", "role")
    return kind is None or bool(_CONSUMER_KIND.search(kind.text))


def _consumers_by_arrow(components: dict[str, YamlNode], arrows: list[_ComponentArrow]) -> list[DescribedConsumer]:
    """The components that an arrow from a queue leads to; their own arrows lead to their effects."""
    queues = {key for key, node in components.items() if _is_queue(key, node)}
    consumers: list[DescribedConsumer] = []
    for arrow in arrows:
        component = components.get(arrow.end)
        if arrow.start not in queues or component is None or arrow.end in queues or not _may_consume(component):
            continue
        consumer = _read_consumer(arrow.end, component, {}) or DescribedConsumer(arrow.end, component.at)
        consumer.queue = arrow.start
        consumer.dedup = consumer.dedup or _dedup_of_arrow(arrow) or _dedup_in_properties(component)
        for outgoing in arrows:
            if outgoing.start == arrow.end and outgoing.end not in queues:
                action = outgoing.node.phrase("label", "action", "description", "operation", "effect")
                text = f"{action.text if action is not None else ''} {outgoing.end}".strip()
                consumer.effects.append(Phrase(text, action.at if action is not None else outgoing.node.at))
        name_node = component.get("name", "title") or component.get("id")
        if name_node is not None:
            consumer.name, consumer.at = name_node.text, name_node.at
        consumers.append(consumer)
    return consumers


def _dedup_of_arrow(arrow: _ComponentArrow) -> Phrase | None:
    """The guard that the label of an arrow mentions."""
    label = arrow.node.phrase("dedup", "idempotent", "idempotency", "label", "description")
    return label if label is not None and _GUARD_WORD.search(label.text) else None


def _dedup_in_properties(component: YamlNode) -> Phrase | None:
    properties = component.get("properties", "config", "attributes", "settings")
    dedup = properties.get(*_DEDUP_FIELDS) if properties is not None else None
    return _phrase_of(dedup) if dedup is not None else None


def _is_queue(key: str, node: YamlNode) -> bool:
    """Whether a component is a queue: by its kind, or by its id if it has no kind."""
    kind = node.phrase("type", "kind", "role")
    return bool(_QUEUE_KIND.search(kind.text if kind is not None else key))
