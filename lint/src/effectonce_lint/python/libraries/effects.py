"""Interprets calls with an effect outside the program: payments, mail, messages, writes over HTTP, publishes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Effect, Value
from effectonce_lint.word_lists import word_set

from . import providers, publishing
from .object_types import LIBRARIES

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_HTTP_LIBRARIES = word_set("requests httpx aiohttp urllib3")
_READ_METHODS = word_set("get head options")
_QUERY_ADDRESSES = re.compile(
    r"oauth|/(?:auth|login|token|graphql|search|query|predict|embeddings?|completions?|translate|verify|validate|lookup"
    r"|check|calculate|render|classify|score|estimate|preview|quote|introspect|convert|geocode|parse|transitions|(?:un)?subscribe|upsert|sync"
    r"|update\w*|queue-change|heartbeat)/?(?:\?.*)?[\"']?$",
    re.IGNORECASE,
)
"""A POST to one of these changes nothing, or twice the same: it logs in, searches, computes, or sets a state."""


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call as an effect; None where it is none, or where its function is in the project and is walked."""
    if walk.project.declared.declares_effect(call.target):
        return providers.emit_effect(walk, call, Effect("call", f"calls {call.name}"))
    function = call.target.function
    if function is not None and call.name not in publishing.ENQUEUES:
        is_abstract = function.owner is not None and function.name in function.owner.abstract_methods
        return _interpret_by_verb(walk, call) if is_abstract else None
    for interpret in (providers.interpret_call, _interpret_http, publishing.interpret_call, _interpret_by_verb):
        value = interpret(walk, call)
        if value is not None:
            return value
    return None


def _interpret_http(walk: CallWalker, call: Call) -> Value | None:
    is_urlopen = call.ref == "urllib.request.urlopen"
    if not (call.tag == "http" or is_urlopen or call.ref.partition(".")[0] in _HTTP_LIBRARIES):
        return None
    method, url = _method_and_address(call, is_urlopen=is_urlopen)
    if method == "post":
        address = (url.string or url.text) if url is not None else ""
        if not _QUERY_ADDRESSES.search(address) or _is_mutation(call):
            effect = Effect("http", f"sends an HTTP {method.upper()}")
            providers.set_provider_by_address(effect, address)
            return providers.emit_effect(walk, call, effect)
    elif method in ("put", "patch", "delete"):
        walk.emit("write", call.node, text=call.source_text, store="http", location=url.text if url is not None else "")
    elif call.tag != "http" and method not in _READ_METHODS:
        return None
    return Value(text=f"{call.source_text}()", tag="http.response")


def _is_mutation(call: Call) -> bool:
    """Whether a GraphQL request is a mutation."""
    query = (call.keywords.get("json", Value()).fields or {}).get("query", Value()).string or ""
    return query.lstrip().startswith("mutation")


def _method_and_address(call: Call, *, is_urlopen: bool) -> tuple[str, Value | None]:
    """The method and the address of a request; the method is "?" where the code computes it."""
    if call.name == "request":
        method = call.argument(0, "method")
        return (method.string or "?").lower() if method is not None else "?", call.argument(1, "url")
    url = call.argument(0, "url")
    if is_urlopen:
        data = call.argument(1, "data") or ((url.fields or {}).get("data") if url is not None else None)
        return "post" if data is not None else "get", url
    return call.name.lower(), url


def _interpret_by_verb(walk: CallWalker, call: Call) -> Value | None:
    """An effect that only the name of a function shows, since its code is not in the project."""
    if call.tag == "web.socket" or call.receiver.text.rpartition(".")[2] in ("ws", "websocket", "socket", "sio"):
        return None
    is_in_project = call.target.cls is not None or call.target.instance is not None
    is_local_name = not call.ref and call.target.base is None and walk.scope.find(call.name) is not None
    if is_in_project or is_local_name or call.ref.partition(".")[0] in LIBRARIES | {"builtins"}:
        return None
    effect = providers.effect_by_verb(call)
    return providers.emit_effect(walk, call, effect) if effect is not None else None
