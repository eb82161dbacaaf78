"""Terraform: queues, functions and what ties them together. Reads blocks and attributes; expressions stay text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from effectonce_lint.findings import Place

from .model import DescribedQueue, Design, place_of_line

_TOKEN = re.compile(
    r"#[^\n]*|//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|<<-?\s*(\w+)\n.*?\n\s*\1\b|[A-Za-z_][\w-]*|[{}\[\]()=,\n]|[^\s]",
    re.DOTALL,
)
_MAX_TOKENS = 200_000


@dataclass(slots=True)
class TerraformBlock:
    kind: str
    labels: tuple[str, ...]
    line: int
    attributes: dict[str, tuple[str, int]] = field(default_factory=dict)
    blocks: list[TerraformBlock] = field(default_factory=list)

    @property
    def address(self) -> str:
        return ".".join(self.labels)


def parse_blocks(text: str) -> list[TerraformBlock]:
    """All blocks, tolerant of what is not understood."""
    root = TerraformBlock("", (), 1)
    stack = [root]
    words: list[tuple[str, int]] = []
    line, last = 1, 0
    tokens = []
    for found in _TOKEN.finditer(text[:_MAX_TOKENS]):
        line += text.count("\n", last, found.start())
        last = found.start()
        token = found.group()
        if not token.startswith(("#", "//", "/*")):
            tokens.append((token, line))
    at = 0
    while at < len(tokens):
        token, number = tokens[at]
        if token == "\n":
            words = []
        elif token == "=" and words:
            value, at = _parse_expression(tokens, at + 1)
            stack[-1].attributes[words[-1][0].strip('"')] = (value, words[-1][1])
            words = []
            continue
        elif token == "{":
            if words:
                name, *labels = [word.strip('"') for word, _ in words]
                block = TerraformBlock(name, tuple(labels), words[0][1])
                stack[-1].blocks.append(block)
                stack.append(block)
            else:
                stack.append(TerraformBlock("", (), number))
            words = []
        elif token == "}":
            if len(stack) > 1:
                stack.pop()
            words = []
        else:
            words.append((token, number))
        at += 1
    return root.blocks


def _parse_expression(tokens: list[tuple[str, int]], at: int) -> tuple[str, int]:
    parts: list[str] = []
    depth = 0
    while at < len(tokens):
        token = tokens[at][0]
        if token == "\n" and depth == 0:
            break
        if token == "}" and depth == 0:
            return " ".join(parts), at
        depth += (token in "{[(" and len(token) == 1) - (token in "}])" and len(token) == 1)
        if token != "\n":
            parts.append(token)
        at += 1
    return " ".join(parts), at


def _collect_constants(found: list[TerraformBlock]) -> dict[str, str]:
    """What `local.x` and `var.x` stand for, as far as the file says."""
    out = {}
    for block in found:
        if block.kind == "locals":
            out.update({f"local.{name}": value for name, (value, _) in block.attributes.items()})
        elif block.kind == "variable" and block.labels and "default" in block.attributes:
            out[f"var.{block.labels[0]}"] = block.attributes["default"][0]
    return out


def _substitute_constants(block: TerraformBlock, constants: dict[str, str]) -> TerraformBlock:
    for name, (value, line) in block.attributes.items():
        block.attributes[name] = (constants.get(value.replace(" ", ""), value), line)
    return block


def _number_attribute(block: TerraformBlock, name: str) -> float | None:
    value = block.attributes.get(name)
    if value is None:
        return None
    text = value[0].strip().strip('"').replace(" ", "")
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)s?", text):
        return float(found.group(1))
    total = 1.0
    if re.fullmatch(r"\d+(?:\*\d+)+", text):
        for part in text.split("*"):
            total *= float(part)
        return total
    return None


def read(path: str, text: str) -> Design:
    """The queues of a Terraform file that somebody reads in the same file."""
    design = Design()
    found = parse_blocks(text)
    constants = _collect_constants(found)
    resources = [
        _substitute_constants(block, constants)
        for block in found
        if block.kind == "resource" and len(block.labels) == 2
    ]
    queues = {block.address: block for block in resources if block.labels[0] == "aws_sqs_queue"}
    functions = {block.address: block for block in resources if block.labels[0] == "aws_lambda_function"}
    dead = _dead_letter_targets(resources)
    policies = " ".join(
        block.attributes.get("queue_url", ("", 0))[0]
        for block in resources
        if block.labels[0] == "aws_sqs_queue_redrive_policy"
    )

    lines = text.splitlines()

    def place(line: int) -> Place:
        return place_of_line(path, line, lines[line - 1])

    made: dict[str, DescribedQueue] = {}
    for address, block in queues.items():
        visibility = block.attributes.get("visibility_timeout_seconds")
        content = block.attributes.get("content_based_deduplication")
        made[address] = DescribedQueue(
            block.labels[1],
            place(block.line),
            visibility=_number_attribute(block, "visibility_timeout_seconds") if visibility else 30.0,
            visibility_at=place(visibility[1]) if visibility else None,
            retention=_number_attribute(block, "message_retention_seconds"),
            dead_letter="redrive_policy" in block.attributes or _join_references(address) in _join_references(policies),
            is_dead_letter=address in dead or bool(re.search(r"dlq|dead", block.labels[1], re.IGNORECASE)),
            content_dedup=place(content[1]) if content and content[0].strip() == "true" else None,
        )
    for block in resources:
        if block.labels[0] != "aws_lambda_event_source_mapping":
            continue
        source = _join_references(block.attributes.get("event_source_arn", ("", 0))[0])
        target = _join_references(block.attributes.get("function_name", ("", 0))[0])
        for address, queue in made.items():
            if re.search(rf"\b{re.escape(address)}\b", source):
                function = next((each for name, each in functions.items() if name in target), None)
                timeout = (_number_attribute(function, "timeout") or 3.0) if function is not None else None
                name = function.labels[1] if function is not None else target.strip('"') or block.labels[1]
                queue.consumers.append((name, place(function.line if function is not None else block.line), timeout))
    design.queues = list(made.values())
    for block in resources:
        design.queues += _other_subscriptions(block, place(block.line))
    return design


def _other_subscriptions(block: TerraformBlock, at: Place) -> list[DescribedQueue]:
    """Subscriptions of other clouds: they are read by definition."""
    kind, name = block.labels
    inner = {each.kind for each in block.blocks}
    if kind == "google_pubsub_subscription":
        return [DescribedQueue(name, at, dead_letter="dead_letter_policy" in inner, consumers=[(name, at, None)])]
    if kind in ("azurerm_servicebus_queue", "azurerm_servicebus_subscription"):
        # Service Bus has a dead-letter queue of its own, unless deliveries are endless
        most = _number_attribute(block, "max_delivery_count")
        return [DescribedQueue(name, at, dead_letter=most is None or most < 1000, consumers=[(name, at, None)])]
    return []


def _dead_letter_targets(resources: list[TerraformBlock]) -> set[str]:
    text = _join_references(
        " ".join(
            value
            for block in resources
            for name, (value, _) in block.attributes.items()
            if "redrive" in name or "dead_letter" in name
        )
    )
    return {f"aws_sqs_queue.{found}" for found in re.findall(r"aws_sqs_queue\.([\w-]+)", text)}


def _join_references(text: str) -> str:
    return re.sub(r"\s*\.\s*", ".", text)
