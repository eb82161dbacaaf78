"""`effectonce asyncapi`: what a worker receives, as an AsyncAPI 3 document."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import typer

from effectonce.envelopes import CloudEvents
from effectonce.envelopes.bodies import BYTES_CONTENT, JSON_CONTENT
from effectonce.envelopes.cloudevents import STRUCTURED_CONTENT
from effectonce.values.durations import span_text
from effectonce.worker.routes import HandlerRoute
from effectonce.worker.worker import Worker

from . import options
from .programs import close_program, load_worker

ASYNCAPI_VERSION: Final = "3.0.0"
#: The name of a message whose handler takes every type that no other handler of the queue takes.
ANY_TYPE: Final = "*"
_SCHEMAS: Final = "#/components/schemas/{}"
_NOT_IN_COMPONENT_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")


def asyncapi(
    worker_name: options.WorkerName,
    version: Annotated[
        str, typer.Option("--app-version", metavar="VERSION", help="The version of your application.")
    ] = "1.0.0",
) -> None:
    """Write an AsyncAPI 3 document of a worker to stdout, as JSON.

    A channel for each queue, a message for each type with the schema of its data, an operation for each handler. The
    extension x-idempotency of an operation has its key and its retention; `effectonce lint` reads it.

    Example: effectonce asyncapi shop.worker:worker > asyncapi.json
    """
    worker = load_worker(worker_name)
    try:
        print(msgspec.json.format(msgspec.json.encode(describe_worker(worker, version))).decode())
    finally:
        close_program(worker)


def describe_worker(worker: Worker, version: str) -> dict[str, Any]:
    """Describe ``worker`` as an AsyncAPI document."""
    routes = worker.routes
    data_schemas, components = _make_schemas([route.data_type for route in routes])
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for route, name, data_schema in zip(routes, _operation_names(routes), data_schemas, strict=True):
        messages = channels.setdefault(route.queue, {"address": route.queue, "messages": {}})["messages"]
        messages[route.type or ANY_TYPE] = _describe_message(worker, route, data_schema)
        operations[name] = _describe_operation(route)
        if route.to is not None:
            channels.setdefault(route.to, {"address": route.to, "messages": {}})
            operations[f"{name}.send"] = {"action": "send", "channel": _reference("channels", route.to)}
    return {
        "asyncapi": ASYNCAPI_VERSION,
        "info": {"title": worker.name, "version": version},
        "defaultContentType": JSON_CONTENT,
        "channels": channels,
        "operations": operations,
        "components": {"schemas": components},
    }


def _operation_names(routes: Sequence[HandlerRoute]) -> list[str]:
    """The names of the handlers. A function that handles several types or queues has these in its name."""
    names = [_component_name(route.name.rpartition(":")[2]) for route in routes]
    count = Counter(names)
    return [
        name if count[name] == 1 else f"{name}.{route.queue}.{route.type or ANY_TYPE}"
        for name, route in zip(names, routes, strict=True)
    ]


def _describe_operation(route: HandlerRoute) -> dict[str, Any]:
    summary = (inspect.getdoc(inspect.unwrap(route.function)) or "").partition("\n\n")[0]
    guard = "seen" if route.policy.seen_set else "lease"
    return {
        "action": "receive",
        "channel": _reference("channels", route.queue),
        **({"summary": " ".join(summary.split())} if summary else {}),
        "messages": [_reference("channels", route.queue, "messages", route.type or ANY_TYPE)],
        "x-handler": route.name,
        "x-idempotency": {
            "mode": "transaction" if route.with_connection else guard,
            **({"ack": "first"} if route.acks_first else {}),
            "key": route.key_text,
            "scope": route.policy.scope,
            "retention": span_text(route.policy.retention_us),
        },
    }


def _describe_message(worker: Worker, route: HandlerRoute, data_schema: dict[str, Any]) -> dict[str, Any]:
    """Describe a message. Its payload is the body of a structured CloudEvent, and otherwise its data: x-envelope says
    how that is written."""
    is_bytes = route.data_type is bytes
    message = {"x-envelope": type(worker.envelope).__name__}
    if route.type is not None:
        message["name"] = route.type
    if isinstance(worker.envelope, CloudEvents) and worker.envelope.mode == "structured":
        event = _describe_event(route, "data_base64" if is_bytes else "data", data_schema)
        return {**message, "contentType": STRUCTURED_CONTENT, "payload": event}
    return {**message, "contentType": BYTES_CONTENT if is_bytes else JSON_CONTENT, "payload": data_schema}


def _describe_event(route: HandlerRoute, data_name: str, data_schema: dict[str, Any]) -> dict[str, Any]:
    text = {"type": "string", "minLength": 1}
    return {
        "type": "object",
        "required": ["specversion", "id", "source", "type", *([data_name] if data_schema else [])],
        "properties": {
            "specversion": {"const": "1.0"},
            "id": text,
            "source": text,
            "type": text if route.type is None else {"const": route.type},
            "time": {"type": "string", "format": "date-time"},
            "idempotencykey": {"type": "string"},
            data_name: data_schema,
        },
    }


def _make_schemas(types: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The JSON schema of each type, and those that they refer to, by name."""
    foreign: dict[str, Any] = {}

    def describe_foreign(type_: Any) -> dict[str, Any]:
        """The schema of a type that msgspec does not know: a pydantic model, or any JSON value."""
        describe = getattr(type_, "model_json_schema", None)
        if describe is None:
            return {"description": "any JSON value"}  # msgspec refuses an empty schema
        prefix = _component_name(f"{type_.__module__}.{type_.__qualname__}")
        schema: dict[str, Any] = describe(ref_template=_SCHEMAS.format(prefix + ".{model}"))
        foreign.update({f"{prefix}.{name}": nested for name, nested in schema.pop("$defs", {}).items()})
        return schema

    schemas, components = msgspec.json.schema_components(
        types, schema_hook=describe_foreign, ref_template=_SCHEMAS.format("{name}")
    )
    return [_as_draft_07(schema) for schema in schemas], _as_draft_07({**components, **foreign})


def _as_draft_07(schema: Any) -> Any:
    """Write ``schema`` in the draft of JSON Schema that AsyncAPI has, where the items of a tuple are a list."""
    if isinstance(schema, list):
        return [_as_draft_07(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("prefixItems"), list):
        schema = {**schema, "items": schema["prefixItems"], "additionalItems": schema.get("items", True)}
        del schema["prefixItems"]
    return {name: _as_draft_07(value) for name, value in schema.items()}


def _component_name(name: str) -> str:
    return _NOT_IN_COMPONENT_NAMES.sub("_", name)


def _reference(*path: str) -> dict[str, str]:
    return {"$ref": "#/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)}
