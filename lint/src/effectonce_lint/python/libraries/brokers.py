"""Clients of brokers: calls that receive, ack and nack messages."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.taints import MESSAGE, PAYLOAD
from effectonce_lint.python.values import EMPTY_SET, Value
from effectonce_lint.word_lists import word_set

from .registrations import callback_of

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_WHOLE_MESSAGE = frozenset({MESSAGE, PAYLOAD})

#: (tag, method): (family, tag of the result), of methods that receive when they are called.
_RECEIVE_METHODS = {
    ("kafka.consumer", "poll"): ("kafka", "kafka.message"),
    ("kafka.consumer", "consume"): ("kafka", "stream:kafka.message"),
    ("kafka.consumer", "getone"): ("kafka", "kafka.message"),
    ("kafka.consumer", "getmany"): ("kafka", "kafka.message"),
    ("sqs.queue", "receive_messages"): ("sqs", "stream:sqs.message"),
    ("asb.receiver", "receive_messages"): ("servicebus", "stream:asb.message"),
    ("asb.receiver", "receive_message_batch"): ("servicebus", "stream:asb.message"),
    ("nats.sub", "next_msg"): ("nats", "nats.message"),
    ("nats.sub", "fetch"): ("nats", "stream:nats.message"),
    ("nats.psub", "fetch"): ("nats", "stream:nats.message"),
    ("aiopika.queue", "get"): ("aio-pika", "aiopika.message"),
    ("pika.channel", "basic_get"): ("pika", "pika.tuple"),
    ("pulsar.consumer", "receive"): ("pulsar", "pulsar.message"),
    ("pubsub.subscriber", "pull"): ("pubsub", "pubsub.response"),
    ("redis.pubsub", "get_message"): ("redis", "redis.message"),
}
#: The same for methods that no other library has.
_RECEIVE_METHODS_BY_NAME = {
    "xreadgroup": ("redis", "redis.entries"),
    "xread": ("redis", "redis.entries"),
    "xautoclaim": ("redis", "redis.entries"),
    "brpop": ("redis", "redis.message"),
    "blpop": ("redis", "redis.message"),
    "brpoplpush": ("redis", "redis.message"),
    "blmove": ("redis", "redis.message"),
}
#: (tag, method): the tag of the source of messages that the method returns.
_SOURCE_METHODS = {
    ("redis", "pubsub"): "redis.pubsub",
    ("pika.channel", "consume"): "stream:pika.tuple",
    ("aiopika.queue", "iterator"): "stream:aiopika.message",
    ("nats.client", "subscribe"): "nats.sub",
    ("nats.js", "subscribe"): "nats.sub",
    ("nats.client", "pull_subscribe"): "nats.psub",
    ("nats.js", "pull_subscribe"): "nats.psub",
}
_CALLBACK_METHODS = word_set("consume subscribe pull_subscribe")
#: Methods of boto3 and of its sessions that return a client: how its tag begins, before the name of the service.
_AWS_FACTORIES = {"client": "aws.", "create_client": "aws.", "resource": "aws.resource."}
#: Objects that receive when they are iterated: (family, tag of one message), by their tag.
_ITERATED_SOURCES = {
    "kafka.consumer": ("kafka", "kafka.message"),
    "asb.receiver": ("servicebus", "asb.message"),
    "redis.pubsub": ("redis", "redis.message"),
    "stream:pika.tuple": ("pika", "pika.tuple"),
    "stream:aiopika.message": ("aio-pika", "aiopika.message"),
    "stream:nats": ("nats", "nats.message"),
    "aiopika.queue": ("aio-pika", "aiopika.message"),
    "pulsar.consumer": ("pulsar", "pulsar.message"),
    "mqtt.messages": ("mqtt", "mqtt.message"),
}
_TUPLE_PARTS = {
    ("pika.tuple", 0): "pika.method",
    ("pika.tuple", 1): "pika.properties",
}
KINDS = {
    "kafka": "Kafka loop",
    "sqs": "SQS loop",
    "servicebus": "Service Bus loop",
    "nats": "NATS loop",
    "redis": "Redis loop",
    "pika": "pika loop",
    "aio-pika": "aio-pika loop",
    "pulsar": "Pulsar loop",
    "pubsub": "Pub/Sub loop",
    "mqtt": "MQTT loop",
}

_ACK_METHODS = word_set("ack acknowledge complete accept delete ack_sync")
_NACK_METHODS = word_set(
    "nack nak reject abandon term requeue release dead_letter negative_acknowledge reject_log_error defer"
)
_ACKS_BY_NAME = word_set(
    "basic_ack xack complete_message delete_message delete_message_batch acknowledge store_offsets commit_offsets"
    " complete_async ack_message"
)
_NACKS_BY_NAME = word_set(
    "basic_nack basic_reject abandon_message dead_letter_message defer_message negative_acknowledge"
    " change_message_visibility seek pause send_to_dlq"
)
_MESSAGE_TAGS = word_set(
    "aiopika.message nats.message asb.message pubsub.message kombu.message sqs.message faststream.message"
    " pulsar.message"
)
_REDELIVERY_ERRORS = word_set("Retry Reject Requeue NackMessage RejectMessage RetryTask JobRetry RetryException")


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call on a broker's client: it makes a source of messages, receives from one, or settles a message."""
    for interpret in _INTERPRETERS:
        value = interpret(walk, call)
        if value is not None:
            return value
    return None


def _interpret_receive(walk: CallWalker, call: Call) -> Value | None:
    """`consumer.poll()`, `queue.receive_messages()`: the call receives messages."""
    name, tag = call.name, call.tag
    source = _RECEIVE_METHODS.get((tag, name))
    if source is None and not call.ref and (not tag or tag.startswith("redis")):
        source = _RECEIVE_METHODS_BY_NAME.get(name)
    if source is None and name == "receive_message" and (tag == "aws.sqs" or "QueueUrl" in call.keywords):
        source = ("sqs", "sqs.response")
    return _emit_receive(walk, call, *source) if source is not None else None


def _make_source(walk: CallWalker, call: Call) -> Value | None:
    """Make a subscription or an iterator. With a callback, such a method registers a consumer instead."""
    tag = _SOURCE_METHODS.get((call.tag, call.name))
    if tag is None or (call.name in _CALLBACK_METHODS and callback_of(walk, call) is not None):
        return None
    taint = _WHOLE_MESSAGE if tag.startswith("stream:") else EMPTY_SET
    return Value(text=f"{call.name}()", tag=tag, taint=taint, fields=dict(call.keywords))


def _make_sqs_queue(walk: CallWalker, call: Call) -> Value | None:
    """`sqs.create_queue(…)`, with the attributes of the queue: its retention is a part of the redelivery window."""
    if call.name != "create_queue" or call.tag not in ("aws.sqs", "aws.resource.sqs"):
        return None
    tag = "sqs.queue" if call.tag == "aws.resource.sqs" else ""
    return Value(text=f"{call.source_text}()", tag=tag, fields=dict(call.keywords))


def _make_aws_client(walk: CallWalker, call: Call) -> Value | None:
    """`boto3.client("sqs")`, with the name of the service in its tag."""
    prefix = _AWS_FACTORIES.get(call.name)
    if prefix is None or not (call.tag == "boto.session" or call.ref in ("boto3.client", "boto3.resource")):
        return None
    service = call.argument(0, "service_name")
    name = service.literal if service is not None and isinstance(service.literal, str) else "?"
    return Value(text=f"{call.source_text}({name})", tag=f"{prefix}{name}")


def _emit_receive(walk: CallWalker, call: Call, family: str, tag: str) -> Value:
    if call.node is walk.discarded_call:  # `consumer.poll(0)` as a statement only keeps the connection alive
        return Value()
    source = Value(fields=dict(call.keywords), base=call.receiver)
    walk.emit("receive", call.node, text=call.source_text, family=family, key=source)
    return Value(text=f"{call.source_text}()", tag=tag, taint=_WHOLE_MESSAGE)


def receive_by_iteration(walk: CallWalker, iterable: Value, node: ast.AST) -> Value | None:
    """Emit the receive of a loop over ``iterable``, and give one of its messages; None if it has none."""
    tag = iterable.tag
    if tag in _ITERATED_SOURCES:
        family, message_tag = _ITERATED_SOURCES[tag]
        walk.emit("receive", node, text=iterable.text, family=family, key=iterable)
        return Value(text=f"{iterable.text}[]", tag=message_tag, taint=_WHOLE_MESSAGE)
    if tag.startswith("stream:"):
        return Value(text=f"{iterable.text}[]", tag=tag.removeprefix("stream:"), taint=_WHOLE_MESSAGE)
    if tag in ("kafka.message", "redis.entries", "redis.message", "pika.tuple"):
        return replace(iterable, text=f"{iterable.text}[]")
    return None


def tag_of_unpacked(value: Value, index: int) -> str:
    """The tag of one part of a tuple that a client returns."""
    if value.tag in ("kafka.message", "redis.entries"):
        return value.tag
    return _TUPLE_PARTS.get((value.tag, index), "")


def _interpret_settlement(walk: CallWalker, call: Call) -> Value | None:
    """Emit an ack, a nack or a retry."""
    name, tag = call.name, call.tag
    if call.target.function is not None or call.ref.startswith(("builtins.", "os.")):
        return None
    looks_like_message = MESSAGE in call.receiver.taint or "message" in call.receiver.text
    is_message = tag in _MESSAGE_TAGS or (looks_like_message and name in ("ack", "nack", "nak", "reject"))
    is_commit = tag == "kafka.consumer" and name in ("commit", "commit_async")
    if is_commit or (is_message and name in _ACK_METHODS) or name in _ACKS_BY_NAME:
        walk.emit("ack", call.node, text=call.source_text, key=call.argument(0, "offsets") if is_commit else None)
    elif (is_message and name in _NACK_METHODS) or name in _NACKS_BY_NAME:
        walk.emit("nack", call.node, text=call.source_text)
    elif name == "retry" and tag in ("celery.self", "celery.app"):
        walk.emit("retry", call.node, text=call.source_text, key=Value(fields=dict(call.keywords)))
    else:
        return None
    return Value(literal=None, text=f"{name}()")


def requests_redelivery(name: str) -> bool:
    """Whether raising ``name`` asks the broker to deliver again."""
    return name.partition("(")[0].rpartition(".")[2] in _REDELIVERY_ERRORS


_INTERPRETERS = (_interpret_receive, _make_sqs_queue, _make_source, _make_aws_client, _interpret_settlement)
