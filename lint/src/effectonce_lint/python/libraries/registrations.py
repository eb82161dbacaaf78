"""Calls that make a function a consumer: a callback handed to a broker, a job that is enqueued, a route."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Value
from effectonce_lint.word_lists import word_set

from .frameworks import BY_REF, consumer_of_decorator

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker


@dataclass(slots=True, frozen=True)
class _CallbackMethod:
    """A method that takes a callback: on what, and what the callback then is and gets."""

    on: frozenset[str]
    family: str
    kind: str
    tags: tuple[tuple[int, str], ...] = ()
    acks: str = "return"


_PIKA = ((0, "pika.channel"), (1, "pika.method"), (2, "pika.properties"), (3, "body"))
_CALLBACK_METHODS = {
    "basic_consume": [_CallbackMethod(word_set(""), "pika", "pika callback", _PIKA, "explicit")],
    "consume": [
        _CallbackMethod(
            word_set("aiopika.queue"), "aio-pika", "aio-pika callback", ((0, "aiopika.message"),), "explicit"
        )
    ],
    "subscribe": [
        _CallbackMethod(word_set("nats.client nats.js"), "nats", "NATS callback", ((0, "nats.message"),), "explicit"),
        _CallbackMethod(
            word_set("pubsub.subscriber"), "pubsub", "Pub/Sub callback", ((0, "pubsub.message"),), "explicit"
        ),
        _CallbackMethod(word_set("pulsar.client"), "pulsar", "Pulsar listener", ((1, "pulsar.message"),), "explicit"),
        _CallbackMethod(word_set("babelqueue"), "babelqueue", "BabelQueue handler"),
    ],
    "register": [_CallbackMethod(word_set("babelqueue"), "babelqueue", "BabelQueue handler")],
    "handler": [_CallbackMethod(word_set("babelqueue"), "babelqueue", "BabelQueue handler")],
    "task": [
        _CallbackMethod(word_set("celery.app"), "celery", "Celery task"),
        _CallbackMethod(word_set("huey"), "huey", "Huey task"),
        _CallbackMethod(word_set("taskiq.broker"), "taskiq", "taskiq task"),
        _CallbackMethod(word_set("procrastinate.app"), "procrastinate", "Procrastinate task"),
    ],
}
"""By name; an empty ``on`` means that the name alone is enough."""
_CALLBACK_ARGUMENTS = word_set(
    "on_message_callback callback cb consumer_callback on_message func handler message_listener"
)
_COMPENSATIONS = word_set("compensate compensation compensating_action on_compensate compensate_with undo compensator")
_ROUTES = word_set("add_url_rule add_api_route add_route add_post add_resource")
_ROUTE_REFS = word_set("starlette.routing.Route aiohttp.web.post aiohttp.web.put sanic.Sanic.add_route")
_POSTED = word_set("post on_post")
"""Methods of a view, or of a resource, that answer to a POST."""
_ENQUEUES = {"enqueue": 0, "enqueue_call": 0, "enqueue_in": 1, "enqueue_at": 1}


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Register the function that ``call`` makes a consumer, a route or a compensation."""
    for interpret in (_update_config, _register_decorated):
        value = interpret(walk, call)
        if value is not None:
            return value
    for name in _COMPENSATIONS & call.keywords.keys():
        walk.register("saga", "compensation", call.keywords[name], call)
    callback = callback_of(walk, call)  # once: to find it may take a walk through a class
    for register in _REGISTRATIONS:
        value = register(walk, call, callback)
        if value is not None:
            return value
    return None


def _register_decorated(walk: CallWalker, call: Call) -> Value | None:
    """A decorator that is called by hand: `broker.subscriber("orders")(handler)`."""
    if call.target.tag != "makes.consumer":
        return None
    callback = callback_of(walk, call)
    decorator = call.target.base
    if callback is None or decorator is None:
        return Value()
    settings = call.target.fields or {}
    walk.register(*consumer_of_decorator(decorator, set(settings)), callback, replace(call, keywords=settings))
    return callback


def _register_callback(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """`channel.basic_consume("orders", on_message)`, `app.task(charge)`."""
    if callback is None:
        return None
    name = call.name
    unseen = name == "consume" and not call.tag and not call.ref and b"aio_pika" in walk.module.content
    for method in _CALLBACK_METHODS.get(name, ()):
        if not method.on or call.tag in method.on or unseen:
            walk.register(method.family, method.kind, callback, call, acks=method.acks, tags=method.tags)
            return callback if name == "task" else Value(text=f"{name}()")
    if call.ref in BY_REF:
        walk.register(*BY_REF[call.ref], callback, call)
        return callback
    return None


def _make_decorator(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """`subscriber = broker.subscriber("orders")`: a decorator that is kept, and called later."""
    if callback is not None or not consumer_of_decorator(call.target, set(call.keywords))[0]:
        return None
    if any(each.literal is None for each in call.args):
        return None
    return Value(text=f"{call.source_text}()", tag="makes.consumer", base=call.target, fields=dict(call.keywords))


def _class_of_view(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """`OrderView.as_view()` stands for its class."""
    return call.receiver if call.name == "as_view" and call.receiver.cls is not None else None


def _register_router(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """`app.include_router(router, prefix="/webhooks")`."""
    if call.name not in ("include_router", "register_blueprint"):
        return None
    prefix = call.keywords.get("prefix") or call.keywords.get("url_prefix") or Value()
    walk.register_router(call, prefix.string or "")
    return Value()


def _register_route(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """`path("webhooks/stripe", view)`, `app.add_url_rule(…)`."""
    django = call.name in ("path", "re_path", "url") and call.ref.startswith("django.")
    if not (django or call.name in _ROUTES or call.ref in _ROUTE_REFS):
        return None
    view = next((found for each in call.all_arguments() if (found := _view_of(walk, each)) is not None), None)
    if view is None:
        return None
    walk.register_route(call, view)
    return Value()


def _register_job(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """`queue.enqueue(job, order_id)`: the job is a consumer. Answers None, since the call is a publish as well."""
    unseen = call.name == "enqueue" and not call.tag and "queue" in call.receiver.text and callback is not None
    known = unseen or call.tag == "rq.queue" or call.ref.startswith(("django_rq.", "rq."))
    if call.name in _ENQUEUES and known:
        job = call.argument(_ENQUEUES[call.name], "func", "f") or Value()
        walk.register("rq", "rq job", walk.value_of_dotted_name(job.string) if job.string is not None else job, call)
    return None


def callback_of(walk: CallWalker, call: Call) -> Value | None:
    """The function that is handed over, by one of the usual names or as the first that is one."""
    named = [call.keywords[name] for name in (*_CALLBACK_ARGUMENTS, "view_func", "endpoint") if name in call.keywords]
    return next((found for each in (*named, *call.args) if (found := _as_callable(walk, each)) is not None), None)


def _as_callable(walk: CallWalker, value: Value) -> Value | None:
    """``value``, if it is a function; the `__call__` of an object that has one."""
    if value.function is not None:
        return value
    if value.instance is None or value.tag:
        return None
    method = walk.member(value, value.instance.cls, "__call__")
    return method if method is not None and method.function is not None else None


def _view_of(walk: CallWalker, value: Value) -> Value | None:
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


def _register_kombu(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """`Consumer(channel, callbacks=[on_message])`."""
    if call.name != "Consumer" or not ("callbacks" in call.keywords or call.ref.startswith("kombu.")):
        return None
    callbacks = call.keywords.get("callbacks", Value()).items
    for each in (*callbacks, call.keywords.get("on_message", Value())):
        tags = ((0, "body"), (1, "kombu.message"))
        walk.register("kombu", "kombu callback", each, call, acks="explicit", tags=tags)
    return Value(text="Consumer()", tag="kombu.consumer")


def _register_batch_helper(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """Helpers that call a function for each record of a Lambda event."""
    if call.name in ("process_partial_response", "async_process_partial_response"):
        handler = call.keywords.get("record_handler", Value())
        walk.register("lambda", "Lambda record handler", handler, call, tags=((0, "sqs.record"),))
        return Value()
    if call.name == "sqs_batch" and call.ref.startswith("effectonce.") and call.args:
        walk.register("lambda", "Lambda record handler", call.args[0], call)
        return Value()
    return None


def set_attribute(walk: CallWalker, target: ast.Attribute, base: Value, value: Value) -> None:
    """`client.on_message = handler`, as MQTT clients have it; Celery's `app.conf.task_acks_late = False`."""
    if target.attr == "on_message" and base.tag == "mqtt.client":
        walk.register("mqtt", "MQTT callback", value, None)
    elif base.text.endswith("conf") and target.attr.startswith(("task_", "broker_", "worker_", "visibility")):
        walk.trace.settings[target.attr] = (value, walk.place(target))


def _update_config(walk: CallWalker, call: Call) -> Value | None:
    """`app.conf.update(task_acks_late=False)`."""
    if call.name != "update" or not call.receiver.text.endswith("conf"):
        return None
    for name, value in call.keywords.items():
        walk.trace.settings[name] = (value, walk.place(call.node))
    return Value(literal=None)


_REGISTRATIONS = (
    _register_callback,
    _make_decorator,
    _class_of_view,
    _register_router,
    _register_route,
    _register_kombu,
    _register_job,
    _register_batch_helper,
)
