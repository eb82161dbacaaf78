"""What shows outside: payments, mail and messages, writes over HTTP, publishes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Effect, Value
from effectonce_lint.word_lists import word_set

from . import providers, publishing
from .object_types import LIBRARIES

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_CLIENTS = word_set("requests httpx aiohttp urllib3")
_READS = word_set("get put delete head options")
_ONLY_ASKS = re.compile(
    r"oauth|/(?:auth|login|token|graphql|search|query|predict|embeddings?|completions?|translate|verify|validate|lookup"
    r"|check|calculate|render|classify|score|estimate|preview|quote|introspect|convert|geocode|parse)/?(?:\?.*)?$",
    re.IGNORECASE,
)
"""Addresses that are asked by POST, but only asked."""


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    function = call.target.function
    if function is not None and call.name not in publishing.ENQUEUES:
        says_nothing = function.owner is not None and function.name in function.owner.abstract_methods
        return _interpret_by_verb(walk, call) if says_nothing else None
    for knows in (providers.interpret_call, _interpret_http, publishing.interpret_call, _interpret_by_verb):
        found = knows(walk, call)
        if found is not None:
            return found
    return None


def _interpret_http(walk: CallWalker, call: Call) -> Value | None:
    opens = call.ref == "urllib.request.urlopen"
    if not (call.tag == "http" or opens or call.ref.partition(".")[0] in _CLIENTS):
        return None
    method, url = _method_and_address(call, opens)
    if method in ("post", "patch"):
        address = (url.string or url.text) if url is not None else ""
        if not _ONLY_ASKS.search(address) or _is_mutation(call):
            effect = Effect("http", f"sends an HTTP {method.upper()}")
            providers.set_provider_by_address(effect, address)
            return providers.emit_effect(walk, call, effect)
    elif method in ("put", "delete"):
        walk.emit("write", call.node, text=call.source_text, store="http", location=url.text if url is not None else "")
    elif call.tag != "http" and method not in _READS:
        return None
    return Value(text=f"{call.source_text}()", tag="http.response")


def _is_mutation(call: Call) -> bool:
    """Whether a GraphQL request is a mutation."""
    query = (call.keywords.get("json", Value()).fields or {}).get("query", Value()).string or ""
    return query.lstrip().startswith("mutation")


def _method_and_address(call: Call, opens: bool) -> tuple[str, Value | None]:
    """The method and the address of a request."""
    if call.name == "request":
        method = call.argument(0, "method")
        return (method.string or "?").lower() if method is not None else "?", call.argument(1, "url")
    url = call.argument(0, "url")
    if opens:
        data = call.argument(1, "data") or ((url.fields or {}).get("data") if url is not None else None)
        return "post" if data is not None else "get", url
    return call.name.lower(), url


def _interpret_by_verb(walk: CallWalker, call: Call) -> Value | None:
    """A function that cannot be looked into, and whose name leaves no doubt."""
    if call.tag == "web.socket" or call.receiver.text.rpartition(".")[2] in ("ws", "websocket", "socket", "sio"):
        return None
    seen = call.target.cls is not None or call.target.instance is not None
    local = not call.ref and call.target.base is None and walk.scope.find(call.name) is not None
    if seen or local or call.ref.partition(".")[0] in LIBRARIES | {"builtins"}:
        return None
    effect = providers.effect_by_verb(call)
    return providers.emit_effect(walk, call, effect) if effect is not None else None
