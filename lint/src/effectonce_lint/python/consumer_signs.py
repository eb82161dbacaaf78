"""Decides which files may define consumers. The others are not walked, which is slow.

A file that uses a library names it in an import, so text is enough to find the files that use one directly. From the
others, the names that make consumers are followed through imports, assignments, functions and classes to such a file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .modules import Binding, Module
from .project import BASES_OF_CLASSES, WORD, Project

_WORDS = (
    b"celery dramatiq faststream taskiq procrastinate huey pika kombu kafka receive_message Records .records xread"
    b" brpop blpop blmove pubsub servicebus pulsar ebhook web_hook construct_event shared_task effectonce babelqueue"
    b" paho basic_consume compensat dempoten cloud_event event_handler azure.functions csrf_exempt powertools xack"
    b" delete_message complete_message enqueue WorkerSettings faust ConnectionListener"
    b" include_router register_blueprint FastMCP function_tool BaseTool"
).split()
_SHAPES = re.compile(
    rb"@[\w.]+\.(?:task|actor|subscriber|handler|job|post|put|patch|route|api_route|on|subscribe|listen(?:er)?"
    rb"|consumer?)\b|@(?:post|api_view)\(|@tool\b|\bRoute\(|\bweb\.post\(|\bpath\([^\n]*(?:hook|callback|ipn|notif)|\[[\"']detail[\"']\]|\b(?:arq|rq|sqs|nats)\b"
    rb"|^class \w+\([^)]*(?:Task|Actor|View|Consumer|Worker|ConsumerMixin|Handler|Listener|Processor|Subscriber|Poller"
    rb"|Job)\b"
    rb"|\b\w*(?:Consumer|Worker|Listener|Subscriber|Poller|Receiver|Dispatcher|Bus)\w*\(|\back\(",
    re.MULTILINE,
)
_DECORATORS = re.compile(rb"^[ \t]*@(\w+)", re.MULTILINE)


def has_signs(project: Project, content: bytes) -> bool:
    """Whether a file mentions anything that a consumer needs, or that the project declares to make one."""
    return (
        any(word in content for word in _WORDS)
        or _SHAPES.search(content) is not None
        or project.declared.may_be_used_in(content)
    )


def _has_signs(project: Project, module: Module) -> bool:
    """The same for a module, which many others may import."""
    if module.has_signs is None:
        module.has_signs = has_signs(project, module.content)
    return module.has_signs


def leads_to_signs(project: Project, module: Module) -> bool:
    """Whether a decorator, a base class or a function that ``module`` calls comes from a file with signs."""
    followed: set[tuple[str, str]] = set()
    return any(_name_leads_to_signs(project, module, name, followed) for name in _registering_names(module))


def _registering_names(module: Module) -> set[str]:
    """The names that may make a consumer: of decorators, of base classes, and of what the module's own code calls."""
    names = {name.decode() for name in _DECORATORS.findall(module.content)}
    names.update(word.decode() for bases in BASES_OF_CLASSES.findall(module.content) for word in WORD.findall(bases))
    for statement in module.tree.body:
        match statement:
            case ast.Expr(value=ast.Call(func=function)) | ast.Assign(value=ast.Call(func=function)):
                names.update(_names_in(function))
    return names


def _name_leads_to_signs(project: Project, module: Module, name: str, followed: set[tuple[str, str]]) -> bool:
    if (module.path, name) in followed:
        return False
    followed.add((module.path, name))
    for binding in (*module.bindings.get(name, ()), *module.bindings.get("*", ())):
        if binding.kind in ("import", "from"):
            if _import_leads_to_signs(project, module, binding, name, followed):
                return True
        elif any(_name_leads_to_signs(project, module, used, followed) for used in _names_of(binding)):
            return True
    return False


def _import_leads_to_signs(
    project: Project, module: Module, binding: Binding, name: str, followed: set[tuple[str, str]]
) -> bool:
    imported = name if binding.name in ("", "*") else binding.name
    for path in project.sources(module, binding):
        source = project.load(path)
        if source is not None and (
            _has_signs(project, source) or _name_leads_to_signs(project, source, imported, followed)
        ):
            return True
    return False


def _names_of(binding: Binding) -> Iterator[str]:
    """The names that a function, a class or an assigned value is made of."""
    node = binding.value if binding.value is not None else binding.node
    return _names_in(node) if node is not None else iter(())


def _names_in(node: ast.AST) -> Iterator[str]:
    return (part.id for part in ast.walk(node) if isinstance(part, ast.Name))
