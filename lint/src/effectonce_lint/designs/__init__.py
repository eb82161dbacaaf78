"""Designs: documents and deployment settings that describe consumers before there is code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from effectonce_lint.python.modules import UnreadableFile

from . import asyncapi, consumer_lists, deployment_files, markdown, mermaid, sql_schemas, terraform, yaml_tree
from .model import Design

_TREE_ENDINGS = (".yaml", ".yml", ".json")
_DEPLOYMENT_ENDINGS = (*_TREE_ENDINGS, ".tf")
_DESIGN_ENDINGS = (*_DEPLOYMENT_ENDINGS, ".md", ".markdown", ".mmd", ".mermaid", ".sql")
_FORMAT_MARK = re.compile(
    rb"^\s*[\"']?asyncapi[\"']?\s*:|AWSTemplateFormatVersion|AWS::|^functions:|^services:", re.MULTILINE
)


def is_design(name: str) -> bool:
    """Whether a file of this name may be a design."""
    return name.lower().endswith(_DESIGN_ENDINGS)


def may_be_deployment(name: str) -> bool:
    """Whether a file of this name may hold settings: AsyncAPI, Terraform, CloudFormation and their like."""
    return name.lower().endswith(_DEPLOYMENT_ENDINGS)


def read_design(
    path: str,
    content: bytes,
    *,
    asked_for: bool = True,
    lists: bool = True,
    others: Callable[[], Iterable[str]] = sql_schemas.no_other_files,
) -> Design:
    """What a file describes. `checks.check` finds what is wrong with it.

    A file in a checked folder (not ``asked_for`` by name) that does not look like a design describes nothing, since
    most YAML is something else; without ``lists``, lists of consumers in YAML and JSON do not count as designs either.
    ``others`` gives the SQL files around it, because one migration may constrain another's
    table.
    """
    low = path.lower()
    if low.endswith(_TREE_ENDINGS):
        return _read_tree(path, content, asked_for, lists)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        if asked_for:
            raise UnreadableFile("not text in UTF-8") from None
        return Design()
    if low.endswith(".tf"):
        return terraform.read(path, text)
    if low.endswith(".sql"):
        return sql_schemas.read(path, text, others)
    if low.endswith((".mmd", ".mermaid")):
        return mermaid.read(path, text.splitlines(), 1)
    return markdown.read(path, text)


def _read_tree(path: str, content: bytes, asked_for: bool, lists: bool) -> Design:
    format_mark = _FORMAT_MARK.search(content)
    if not asked_for:
        may_be_list = lists and consumer_lists.looks_like_design(content)
        if len(content) > yaml_tree.MAX_DESIGN_BYTES or not (format_mark or may_be_list):
            return Design()
    try:
        roots = yaml_tree.load_documents(path, content)
    except UnreadableFile:
        if asked_for or (format_mark and b"asyncapi" in format_mark.group()):
            raise
        return Design()  # probably a template that renders YAML, like a Helm chart's
    design = Design()
    for root in roots:
        if root.kind == "map":
            document = _read_document(root)
            design.consumers += document.consumers
            design.queues += document.queues
            design.early_acks += document.early_acks
            design.short_retentions += document.short_retentions
    return design


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
