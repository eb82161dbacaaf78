"""Designs: documents and settings that say what consumes what, before any code does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from effectonce_lint.findings import Finding
from effectonce_lint.python.modules import UnreadableFile

from . import asyncapi, consumer_lists, deployment_files, markdown, mermaid, sql_schemas, terraform, yaml_tree
from .checks import check
from .model import Design

_TREES = (".yaml", ".yml", ".json")
_ENDINGS = (*_TREES, ".md", ".markdown", ".mmd", ".mermaid", ".tf", ".sql")
_MARKED = re.compile(
    rb"^\s*[\"']?asyncapi[\"']?\s*:|AWSTemplateFormatVersion|AWS::|^functions:|^services:", re.MULTILINE
)


def is_design(name: str) -> bool:
    """Whether a file of this name may be a design."""
    return name.lower().endswith(_ENDINGS)


def check_design(
    path: str,
    content: bytes,
    *,
    asked_for: bool = True,
    others: Callable[[], Iterable[str]] = sql_schemas.no_other_files,
) -> list[Finding]:
    """All findings of a design.

    A file that nobody asked for by name, and that does not look like a design, is none: a folder is full of YAML.
    ``others`` gives the SQL files around it, for what one of them says of another's table.
    """
    low = path.lower()
    if low.endswith(_TREES):
        return check(_read_tree(path, content, asked_for))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        if asked_for:
            raise UnreadableFile("not text in UTF-8") from None
        return []
    if low.endswith(".tf"):
        return check(terraform.read(path, text))
    if low.endswith(".sql"):
        return check(sql_schemas.read(path, text, others))
    if low.endswith((".mmd", ".mermaid")):
        return check(mermaid.read(path, text.splitlines(), 1))
    return check(markdown.read(path, text))


def _read_tree(path: str, content: bytes, asked_for: bool) -> Design:
    marked = _MARKED.search(content)
    if not asked_for and (
        len(content) > yaml_tree.MAX_DESIGN_BYTES or not (marked or consumer_lists.looks_like_design(content))
    ):
        return Design()
    try:
        roots = yaml_tree.load_documents(path, content)
    except UnreadableFile:
        if asked_for or (marked and b"asyncapi" in marked.group()):
            raise
        return Design()  # a template of a template
    out = Design()
    for root in roots:
        if root.kind == "map":
            found = _read_document(root)
            out.consumers += found.consumers
            out.queues += found.queues
            out.early_acks += found.early_acks
            out.short += found.short
    return out


def _read_document(root: yaml_tree.YamlNode) -> Design:
    if asyncapi.is_asyncapi(root):
        return asyncapi.read(root)
    if deployment_files.is_serverless(root):
        return deployment_files.read_serverless(root)
    if deployment_files.is_template(root):
        shared = root.get("Globals")
        return deployment_files.read_template(root.get("Resources"), shared=shared.get("Function") if shared else None)
    if deployment_files.is_compose(root):
        return deployment_files.read_compose(root)
    return consumer_lists.read(root)
