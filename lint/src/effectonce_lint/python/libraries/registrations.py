"""Calls that make a function a consumer: a callback handed to a broker, a job that is enqueued, a route."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Val
from effectonce_lint.word_lists import words

from .frameworks import BY_REF, by_decorator

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, Calls


@dataclass(slots=True, frozen=True)
class _Takes:
    """A method that takes a callback: on what, and what the callback then is and gets."""

    on: frozenset[str]
    family: str
    kind: str
    tags: tuple[tuple[int, str], ...] = ()
    acks: str = "return"


_PIKA = ((0, "pika.channel"), (1, "pika.method"), (2, "pika.properties"), (3, "body"))
_TAKES = {
    "basic_consume": [_Takes(words(""), "pika", "pika callback", _PIKA, "explicit")],
    "consume": [_Takes(words("aiopika.queue"), "aio-pika", "aio-pika callback", ((0, "aiopika.message"),), "explicit")],
    "subscribe": [
        _Takes(words("nats.client nats.js"), "nats", "NATS callback", ((0, "nats.message"),), "explicit"),
        _Takes(words("pubsub.subscriber"), "pubsub", "Pub/Sub callback", ((0, "pubsub.message"),), "explicit"),
        _Takes(words("pulsar.client"), "pulsar", "Pulsar listener", ((1, "pulsar.message"),), "explicit"),
        _Takes(words("babelqueue"), "babelqueue", "BabelQueue handler"),
    ],
    "register": [_Takes(words("babelqueue"), "babelqueue", "BabelQueue handler")],
    "handler": [_Takes(words("babelqueue"), "babelqueue", "BabelQueue handler")],
    "task": [
        _Takes(words("celery.app"), "celery", "Celery task"),
        _Takes(words("huey"), "huey", "Huey task"),
        _Takes(words("taskiq.broker"), "taskiq", "taskiq task"),
        _Takes(words("procrastinate.app"), "procrastinate", "Procrastinate task"),
    ],
}
"""By name; an empty ``on`` means that the name alone is enough."""
_CALLBACKS = words("on_message_callback callback cb consumer_callback on_message func handler message_listener")
_COMPENSATIONS = words("compensate compensation compensating_action on_compensate compensate_with undo compensator")
_ROUTES = words("add_url_rule add_api_route add_route add_post add_resource")
_ROUTE_REFS = words("starlette.routing.Route aiohttp.web.post aiohttp.web.put sanic.Sanic.add_route")
_POSTED = words("post on_post")
"""Methods of a view, or of a resource, that answer to a POST."""
_ENQUEUES = {"enqueue": 0, "enqueue_call": 0, "enqueue_in": 1, "enqueue_at": 1}


def called(walk: Calls, call: Call) -> Val | None:
    if (found := _configured(walk, call)) is not None:
        return found
    if call.target.tag == "makes.consumer":
        return _made(walk, call)
    for name in _COMPENSATIONS & call.keywords.keys():
        walk.register("saga", "compensation", call.keywords[name], call)
    name, callback = call.name, callback_of(walk, call)
    if callback is not None:
        for takes in _TAKES.get(name, ()):
            unseen = name == "consume" and not call.tag and not call.ref and b"aio_pika" in walk.module.content
            if not takes.on or call.tag in takes.on or unseen:
                walk.register(takes.family, takes.kind, callback, call, acks=takes.acks, tags=takes.tags)
                return callback if name == "task" else Val(text=f"{name}()")
        if call.ref in BY_REF:
            walk.register(*BY_REF[call.ref], callback, call)
            return callback
    elif by_decorator(call.target, set(call.keywords))[0] and all(each.literal is not None for each in call.args):
        return Val(text=f"{call.shown}()", tag="makes.consumer", base=call.target, fields=dict(call.keywords))
    if name == "as_view" and call.receiver.cls is not None:
        return call.receiver
    if name in ("include_router", "register_blueprint"):
        prefix = call.keywords.get("prefix") or call.keywords.get("url_prefix") or Val()
        walk.register_router(call, prefix.string or "")
        return Val()
    django = name in ("path", "re_path", "url") and call.ref.startswith("django.")
    if django or name in _ROUTES or call.ref in _ROUTE_REFS:
        view = next((found for each in call.all() if (found := _view(walk, each)) is not None), None)
        if view is not None:
            walk.register_route(call, view)
            return Val()
    if name == "Consumer" and ("callbacks" in call.keywords or call.ref.startswith("kombu.")):
        return _kombu(walk, call)
    unseen = name == "enqueue" and not call.tag and "queue" in call.receiver.text and callback is not None
    if name in _ENQUEUES and (unseen or call.tag == "rq.queue" or call.ref.startswith(("django_rq.", "rq."))):
        job = call.argument(_ENQUEUES[name], "func", "f") or Val()
        walk.register("rq", "rq job", walk.by_path(job.string) if job.string is not None else job, call)
        return None  # it is a publish as well
    return _batches(walk, call)


def _made(walk: Calls, call: Call) -> Val:
    """A decorator that is called by hand: `broker.subscriber("orders")(handler)`."""
    callback = callback_of(walk, call)
    decorator = call.target.base
    if callback is None or decorator is None:
        return Val()
    settings = call.target.fields or {}
    walk.register(*by_decorator(decorator, set(settings)), callback, replace(call, keywords=settings))
    return callback


def callback_of(walk: Calls, call: Call) -> Val | None:
    """The function that is handed over, by one of the usual names or as the first that is one."""
    named = [call.keywords[name] for name in (*_CALLBACKS, "view_func", "endpoint") if name in call.keywords]
    return next((found for each in (*named, *call.args) if (found := _callable(walk, each)) is not None), None)


def _callable(walk: Calls, value: Val) -> Val | None:
    """``value``, if it is a function; the `__call__` of an object that has one."""
    if value.function is not None:
        return value
    if value.instance is None or value.tag:
        return None
    method = walk.member(value, value.instance.cls, "__call__")
    return method if method is not None and method.function is not None else None


def _view(walk: Calls, value: Val) -> Val | None:
    """What answers requests: a function, or the method for a POST of a class of views or of a resource."""
    if value.function is not None:
        return value
    if value.cls is not None:
        value = walk.instance_of(value.cls, (), {}, value.text)
    for name in _POSTED if value.instance is not None and not value.tag else ():
        assert value.instance is not None
        method = walk.member(value, value.instance.cls, name)
        if method is not None and method.function is not None:
            return method
    return None


def _kombu(walk: Calls, call: Call) -> Val:
    callbacks = call.keywords.get("callbacks", Val()).items
    for callback in (*callbacks, call.keywords.get("on_message", Val())):
        tags = ((0, "body"), (1, "kombu.message"))
        walk.register("kombu", "kombu callback", callback, call, acks="explicit", tags=tags)
    return Val(text="Consumer()", tag="kombu.consumer")


def _batches(walk: Calls, call: Call) -> Val | None:
    """Helpers that call a function for each record of a Lambda event."""
    if call.name in ("process_partial_response", "async_process_partial_response"):
        handler = call.keywords.get("record_handler", Val())
        walk.register("lambda", "Lambda record handler", handler, call, tags=((0, "sqs.record"),))
        return Val()
    if call.name == "sqs_batch" and call.ref.startswith("effectonce.") and call.args:
        walk.register("lambda", "Lambda record handler", call.args[0], call)
        return Val()
    return None


def attribute_set(walk: Calls, target: ast.Attribute, base: Val, value: Val) -> None:
    """`client.on_message = handler`, as MQTT clients have it; Celery's `app.conf.task_acks_late = False`."""
    if target.attr == "on_message" and base.tag == "mqtt.client":
        walk.register("mqtt", "MQTT callback", value, None)
    elif base.text.endswith("conf") and target.attr.startswith(("task_", "broker_", "worker_", "visibility")):
        walk.trace.settings[target.attr] = (value, walk.place(target))


def _configured(walk: Calls, call: Call) -> Val | None:
    """`app.conf.update(task_acks_late=False)`."""
    if call.name != "update" or not call.receiver.text.endswith("conf"):
        return None
    for name, value in call.keywords.items():
        walk.trace.settings[name] = (value, walk.place(call.node))
    return Val(literal=None)
