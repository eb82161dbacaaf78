"""Calls that make a function a consumer: a callback passed to a broker, a job that is enqueued, a route."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Value
from effectonce_lint.word_lists import word_set

from .frameworks import BY_REF, DECLARED, consumer_of_decorator

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker


@dataclass(slots=True, frozen=True)
class _CallbackMethod:
    """A method that makes its argument a consumer. ``tags``: the types of the callback's parameters, by position.

    ``on``: the tags of the objects that have this method; empty if the name of the method alone is enough.
    """

    on: frozenset[str]
    family: str
    kind: str
    tags: tuple[tuple[int, str], ...] = ()
    acks: str = "return"


_PIKA_PARAMETERS = ((0, "pika.channel"), (1, "pika.method"), (2, "pika.properties"), (3, "body"))
_CALLBACK_METHODS = {
    "basic_consume": [_CallbackMethod(word_set(""), "pika", "pika callback", _PIKA_PARAMETERS, "explicit")],
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
"""By the name of the method."""
_CALLBACK_ARGUMENTS = word_set(
    "on_message_callback callback cb consumer_callback on_message func handler message_listener"
)
_COMPENSATION_ARGUMENTS = word_set(
    "compensate compensation compensating_action on_compensate compensate_with undo compensator"
)
_ROUTE_METHODS = word_set("add_url_rule add_api_route add_route add_post add_resource")
_ROUTE_REFS = word_set("starlette.routing.Route aiohttp.web.post aiohttp.web.put sanic.Sanic.add_route")
_POST_METHODS = word_set("post on_post")
"""Methods of a view, or of a resource, that handle a POST."""
#: Methods of rq's queues: the position of the job among the arguments.
_JOB_POSITIONS = {"enqueue": 0, "enqueue_call": 0, "enqueue_in": 1, "enqueue_at": 1}


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Register the function that ``call`` makes a consumer, a route or a compensation; None for other calls."""
    for interpret in (_update_config, _register_decorated):
        value = interpret(walk, call)
        if value is not None:
            return value
    for name in _COMPENSATION_ARGUMENTS & call.keywords.keys():
        walk.register("saga", "compensation", call.keywords[name], call)
    callback = callback_of(walk, call)  # only once, since finding it may take a walk through a class
    for register in _REGISTRATIONS:
        value = register(walk, call, callback)
        if value is not None:
            return value
    return None


def _register_decorated(walk: CallWalker, call: Call) -> Value | None:
    """Register the argument of a decorator that is called like a function: `broker.subscriber("orders")(handler)`."""
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
    is_unknown_queue = name == "consume" and not call.tag and not call.ref and b"aio_pika" in walk.module.content
    for method in _CALLBACK_METHODS.get(name, ()):
        if not method.on or call.tag in method.on or is_unknown_queue:
            walk.register(method.family, method.kind, callback, call, acks=method.acks, tags=method.tags)
            return callback if name == "task" else Value(text=f"{name}()")
    if call.ref in BY_REF:
        walk.register(*BY_REF[call.ref], callback, call)
        return callback
    if walk.project.declared.declares_consumer(call.target):
        walk.register(*DECLARED, callback, call)
        return callback
    return None


def _make_decorator(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """`subscriber = broker.subscriber("orders")` gives a decorator, which may be called later."""
    if callback is not None or not consumer_of_decorator(call.target, set(call.keywords))[0]:
        return None
    if any(argument.literal is None for argument in call.args):
        return None
    return Value(text=f"{call.source_text}()", tag="makes.consumer", base=call.target, fields=dict(call.keywords))


def _class_of_view(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """`OrderView.as_view()` gives the class itself: the routes look for its methods."""
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
    is_django_path = call.name in ("path", "re_path", "url") and call.ref.startswith("django.")
    if not (is_django_path or call.name in _ROUTE_METHODS or call.ref in _ROUTE_REFS):
        return None
    for argument in call.all_arguments():
        if (view := _view_of(walk, argument)) is not None:
            walk.register_route(call, view)
            return Value()
    return None


def _register_job(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """`queue.enqueue(job, order_id)`: the job is a consumer. Returns None, since the call is a publish as well."""
    looks_like_queue = call.name == "enqueue" and not call.tag and "queue" in call.receiver.text
    is_queue = (looks_like_queue and callback is not None) or call.tag == "rq.queue"
    if call.name in _JOB_POSITIONS and (is_queue or call.ref.startswith(("django_rq.", "rq."))):
        job = call.argument(_JOB_POSITIONS[call.name], "func", "f") or Value()
        walk.register("rq", "rq job", walk.value_of_dotted_name(job.string) if job.string is not None else job, call)
    return None


def callback_of(walk: CallWalker, call: Call) -> Value | None:
    """The function that ``call`` is passed: by one of the usual keywords, or as the first argument that is one."""
    named = [call.keywords[name] for name in (*_CALLBACK_ARGUMENTS, "view_func", "endpoint") if name in call.keywords]
    for argument in (*named, *call.args):
        if (callback := _as_callable(walk, argument)) is not None:
            return callback
    return None


def _as_callable(walk: CallWalker, value: Value) -> Value | None:
    """``value``, if it is a function; the `__call__` of an object that has one."""
    if value.function is not None:
        return value
    if value.instance is None or value.tag:
        return None
    method = walk.member(value, value.instance.cls, "__call__")
    return method if method is not None and method.function is not None else None


def _view_of(walk: CallWalker, value: Value) -> Value | None:
    """The function that handles a request: a view, or the method of a view class or a resource that handles a POST."""
    if value.function is not None:
        return value
    if value.cls is not None:
        value = walk.instance_of(value.cls, (), {}, value.text)
    for name in _POST_METHODS if value.instance is not None and not value.tag else ():
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
    tags = ((0, "body"), (1, "kombu.message"))
    for on_message in (*callbacks, call.keywords.get("on_message", Value())):
        walk.register("kombu", "kombu callback", on_message, call, acks="explicit", tags=tags)
    return Value(text="Consumer()", tag="kombu.consumer")


def _register_batch_helper(walk: CallWalker, call: Call, callback: Value | None) -> Value | None:
    """Register the function that a helper calls for each record of a Lambda event."""
    if call.name in ("process_partial_response", "async_process_partial_response"):
        handler = call.keywords.get("record_handler", Value())
        walk.register("lambda", "Lambda record handler", handler, call, tags=((0, "sqs.record"),))
        return Value()
    if call.name == "sqs_batch" and call.ref.startswith("effectonce.") and call.args:
        walk.register("lambda", "Lambda record handler", call.args[0], call)
        return Value()
    return None


def set_attribute(walk: CallWalker, target: ast.Attribute, base: Value, value: Value) -> None:
    """`client.on_message = handler` of an MQTT client; Celery's `app.conf.task_acks_late = False`."""
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
