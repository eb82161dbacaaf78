"""Terraform: queues and the functions that read them. Blocks and attributes are parsed; expressions stay text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from effectonce_lint.findings import Place

from .model import ConsumerTimeout, DescribedQueue, Design, place_of_line

_TOKEN = re.compile(
    r"#[^\n]*|//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|<<-?\s*(\w+)\n.*?\n\s*\1\b|[A-Za-z_][\w-]*|[{}\[\]()=,\n]|[^\s]",
    re.DOTALL,
)
_MAX_CHARACTERS = 200_000
_SQS_VISIBILITY_SECONDS = 30.0
_LAMBDA_TIMEOUT_SECONDS = 3.0
_ENDLESS_DELIVERIES = 1_000  # a max_delivery_count that never moves a message to the dead-letter queue


@dataclass(slots=True)
class TerraformBlock:
    """A block like `resource "aws_sqs_queue" "orders" { … }`. ``attributes``: by name, the value and its line."""

    kind: str
    labels: tuple[str, ...]
    line: int
    attributes: dict[str, tuple[str, int]] = field(default_factory=dict)
    blocks: list[TerraformBlock] = field(default_factory=list)

    @property
    def address(self) -> str:
        """How expressions name the block: `aws_sqs_queue.orders`."""
        return ".".join(self.labels)

    def value(self, name: str) -> str:
        """The value of an attribute; "" where it is not set."""
        return self.attributes.get(name, ("", 0))[0]


def parse_blocks(text: str) -> list[TerraformBlock]:
    """The top-level blocks of a file. What the parser does not understand it skips."""
    root = TerraformBlock("", (), 1)
    open_blocks = [root]
    words: list[tuple[str, int]] = []  # of the line so far: the head of a block, or the name of an attribute
    tokens = _tokenize(text)
    position = 0
    while position < len(tokens):
        token, line = tokens[position]
        if token == "\n":
            words = []
        elif token == "=" and words:
            value, position = _parse_expression(tokens, position + 1)
            name, name_line = words[-1]
            open_blocks[-1].attributes[name.strip('"')] = (value, name_line)
            words = []
            continue
        elif token == "{":
            if words:
                kind, *labels = [word.strip('"') for word, _ in words]
                block = TerraformBlock(kind, tuple(labels), words[0][1])
                open_blocks[-1].blocks.append(block)
                open_blocks.append(block)
            else:
                open_blocks.append(TerraformBlock("", (), line))
            words = []
        elif token == "}":
            if len(open_blocks) > 1:
                open_blocks.pop()
            words = []
        else:
            words.append((token, line))
        position += 1
    return root.blocks


def _tokenize(text: str) -> list[tuple[str, int]]:
    """The tokens of a file, each with its line, without comments."""
    tokens = []
    line, counted_until = 1, 0
    for match in _TOKEN.finditer(text[:_MAX_CHARACTERS]):
        line += text.count("\n", counted_until, match.start())
        counted_until = match.start()
        if not match.group().startswith(("#", "//", "/*")):
            tokens.append((match.group(), line))
    return tokens


def _parse_expression(tokens: list[tuple[str, int]], position: int) -> tuple[str, int]:
    """The text of the expression that begins at ``position``, and the position behind it."""
    parts: list[str] = []
    depth = 0
    while position < len(tokens):
        token = tokens[position][0]
        if token in ("\n", "}") and depth == 0:
            break
        if token in ("{", "[", "("):
            depth += 1
        elif token in ("}", "]", ")"):
            depth -= 1
        if token != "\n":
            parts.append(token)
        position += 1
    return " ".join(parts), position


def _collect_constants(blocks: list[TerraformBlock]) -> dict[str, str]:
    """The values of `local.x` and `var.x`, where the file sets them."""
    constants = {}
    for block in blocks:
        if block.kind == "locals":
            constants.update({f"local.{name}": value for name, (value, _) in block.attributes.items()})
        elif block.kind == "variable" and block.labels and "default" in block.attributes:
            constants[f"var.{block.labels[0]}"] = block.value("default")
    return constants


def _substitute_constants(block: TerraformBlock, constants: dict[str, str]) -> TerraformBlock:
    """Replace the attributes of ``block`` that are nothing but a constant."""
    for name, (value, line) in block.attributes.items():
        block.attributes[name] = (constants.get(value.replace(" ", ""), value), line)
    return block


def _number_attribute(block: TerraformBlock, name: str) -> float | None:
    """The number in an attribute: `30`, `"30s"` or `6 * 60`."""
    text = block.value(name).strip().strip('"').replace(" ", "")
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)s?", text):
        return float(match.group(1))
    if re.fullmatch(r"\d+(?:\*\d+)+", text):
        return prod(float(factor) for factor in text.split("*"))
    return None


def read(path: str, text: str) -> Design:
    """Read the queues of a Terraform file, with their consumers from the same file."""
    blocks = parse_blocks(text)
    constants = _collect_constants(blocks)
    resources = [
        _substitute_constants(block, constants)
        for block in blocks
        if block.kind == "resource" and len(block.labels) == 2
    ]
    lines = text.splitlines()

    def place(line: int) -> Place:
        return place_of_line(path, line, lines[line - 1])

    queues = _read_queues(resources, place)
    _connect_functions(resources, queues, place)
    design = Design(queues=list(queues.values()))
    for block in resources:
        design.queues += _other_subscriptions(block, place(block.line))
    return design


def _read_queues(resources: list[TerraformBlock], place: Callable[[int], Place]) -> dict[str, DescribedQueue]:
    """The queues of SQS by their addresses."""
    dead_letter_targets = _dead_letter_targets(resources)
    policies = " ".join(
        block.value("queue_url") for block in resources if block.labels[0] == "aws_sqs_queue_redrive_policy"
    )
    queues: dict[str, DescribedQueue] = {}
    for block in resources:
        if block.labels[0] != "aws_sqs_queue":
            continue
        visibility = block.attributes.get("visibility_timeout_seconds")
        content_dedup = block.attributes.get("content_based_deduplication")
        queues[block.address] = DescribedQueue(
            block.labels[1],
            place(block.line),
            visibility=_number_attribute(block, "visibility_timeout_seconds")
            if visibility
            else _SQS_VISIBILITY_SECONDS,
            visibility_at=place(visibility[1]) if visibility else None,
            has_dead_letter_queue="redrive_policy" in block.attributes or block.address in _join_references(policies),
            is_dead_letter=block.address in dead_letter_targets
            or bool(re.search(r"dlq|dead", block.labels[1], re.IGNORECASE)),
            content_dedup_at=place(content_dedup[1]) if content_dedup and content_dedup[0].strip() == "true" else None,
        )
    return queues


def _connect_functions(
    resources: list[TerraformBlock], queues: dict[str, DescribedQueue], place: Callable[[int], Place]
) -> None:
    """Add the Lambda functions to the queues that they read."""
    functions = {block.address: block for block in resources if block.labels[0] == "aws_lambda_function"}
    for block in resources:
        if block.labels[0] != "aws_lambda_event_source_mapping":
            continue
        source = _join_references(block.value("event_source_arn"))
        target = _join_references(block.value("function_name"))
        function = next((function for address, function in functions.items() if address in target), None)
        if function is None:
            consumer = ConsumerTimeout(target.strip('"') or block.labels[1], place(block.line))
        else:
            timeout = _number_attribute(function, "timeout") or _LAMBDA_TIMEOUT_SECONDS
            consumer = ConsumerTimeout(function.labels[1], place(function.line), timeout)
        for address, queue in queues.items():
            if re.search(rf"\b{re.escape(address)}\b", source):
                queue.consumers.append(consumer)


def _other_subscriptions(block: TerraformBlock, at: Place) -> list[DescribedQueue]:
    """The queue that a subscription of Google or Azure is. A subscription always has a reader."""
    kind, name = block.labels
    consumers = [ConsumerTimeout(name, at)]
    if kind == "google_pubsub_subscription":
        has_policy = any(inner.kind == "dead_letter_policy" for inner in block.blocks)
        return [DescribedQueue(name, at, has_dead_letter_queue=has_policy, consumers=consumers)]
    if kind in ("azurerm_servicebus_queue", "azurerm_servicebus_subscription"):
        # every queue of Service Bus has a dead-letter queue; a message gets there after so many deliveries
        max_deliveries = _number_attribute(block, "max_delivery_count")
        gets_there = max_deliveries is None or max_deliveries < _ENDLESS_DELIVERIES
        return [DescribedQueue(name, at, has_dead_letter_queue=gets_there, consumers=consumers)]
    return []


def _dead_letter_targets(resources: list[TerraformBlock]) -> set[str]:
    """The addresses of the queues that a redrive policy names."""
    policies = " ".join(
        value
        for block in resources
        for name, (value, _) in block.attributes.items()
        if "redrive" in name or "dead_letter" in name
    )
    return {f"aws_sqs_queue.{name}" for name in re.findall(r"aws_sqs_queue\.([\w-]+)", _join_references(policies))}


def _join_references(text: str) -> str:
    """Remove the spaces that tokenizing put around the dots of references."""
    return re.sub(r"\s*\.\s*", ".", text)
