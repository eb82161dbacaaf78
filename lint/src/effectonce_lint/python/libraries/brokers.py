"""Brokers: how messages are received, acked and given back."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Val
from effectonce_lint.word_lists import words

from .message_parts import MESSAGE, PAYLOAD
from .registrations import callback_of

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, Calls

_WHOLE = frozenset({MESSAGE, PAYLOAD})

#: (tag, method): (family, the tag of what it gives). Calling it receives.
_RECEIVES = {
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
#: Methods whose name alone says that they receive, and from what.
_RECEIVES_BY_NAME = {
    "xreadgroup": ("redis", "redis.entries"),
    "xread": ("redis", "redis.entries"),
    "xautoclaim": ("redis", "redis.entries"),
    "brpop": ("redis", "redis.message"),
    "blpop": ("redis", "redis.message"),
    "brpoplpush": ("redis", "redis.message"),
    "blmove": ("redis", "redis.message"),
}
#: Looping over it receives: tag to (family, tag of one).
_ITERATED = {
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
_UNPACKED = {
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

_ACKS = words("ack acknowledge complete accept delete ack_sync")
_NACKS = words("nack nak reject abandon term requeue release dead_letter negative_acknowledge reject_log_error defer")
_ACKS_BY_NAME = words(
    "basic_ack xack complete_message delete_message delete_message_batch acknowledge store_offsets commit_offsets"
    " complete_async ack_message"
)
_NACKS_BY_NAME = words(
    "basic_nack basic_reject abandon_message dead_letter_message defer_message negative_acknowledge"
    " change_message_visibility seek pause send_to_dlq"
)
_MESSAGES = words(
    "aiopika.message nats.message asb.message pubsub.message kombu.message sqs.message faststream.message"
    " pulsar.message"
)
_AGAIN = words("Retry Reject Requeue NackMessage RejectMessage RetryTask JobRetry RetryException")


def called(walk: Calls, call: Call) -> Val | None:
    name, tag = call.name, call.tag
    if (tag, name) in _RECEIVES:
        return _received(walk, call, *_RECEIVES[tag, name])
    if name in _RECEIVES_BY_NAME and not call.ref and (tag in ("redis", "") or tag.startswith("redis")):
        return _received(walk, call, *_RECEIVES_BY_NAME[name])
    if name == "create_queue" and tag in ("aws.sqs", "aws.resource.sqs"):
        kind = "sqs.queue" if tag == "aws.resource.sqs" else ""
        return Val(text=f"{call.shown}()", tag=kind, fields=dict(call.keywords))
    if name == "receive_message" and (tag == "aws.sqs" or "QueueUrl" in call.keywords):
        return _received(walk, call, "sqs", "sqs.response")
    if tag == "redis" and name == "pubsub":
        return Val(text="pubsub()", tag="redis.pubsub")
    if name == "consume" and tag == "pika.channel" and callback_of(walk, call) is None:
        return Val(text="consume()", tag="stream:pika.tuple", taint=_WHOLE, fields=dict(call.keywords))
    if name == "iterator" and tag == "aiopika.queue":
        return Val(text="iterator()", tag="stream:aiopika.message", taint=_WHOLE, fields=dict(call.keywords))
    if (
        tag in ("nats.client", "nats.js")
        and name in ("subscribe", "pull_subscribe")
        and callback_of(walk, call) is None
    ):
        return Val(text=f"{name}()", tag="nats.sub" if name == "subscribe" else "nats.psub", fields=dict(call.keywords))
    if name == "client" and (call.ref == "boto3.client" or tag == "boto.session"):
        return _aws(call, "aws.")
    if name == "create_client" and tag == "boto.session":
        return _aws(call, "aws.")
    if name == "resource" and (call.ref == "boto3.resource" or tag == "boto.session"):
        return _aws(call, "aws.resource.")
    return _settled(walk, call)


def _aws(call: Call, prefix: str) -> Val:
    service = call.argument(0, "service_name")
    name = service.literal if service is not None and isinstance(service.literal, str) else "?"
    return Val(text=f"{call.shown}({name})", tag=f"{prefix}{name}")


def _received(walk: Calls, call: Call, family: str, tag: str) -> Val:
    if call.node is walk.discarded:  # `consumer.poll(0)`, to keep the connection alive
        return Val()
    source = Val(fields=dict(call.keywords), base=call.receiver)
    walk.emit("receive", call.node, text=call.shown, store=family, key=source)
    return Val(text=f"{call.shown}()", tag=tag, taint=_WHOLE)


def iterated(walk: Calls, iterable: Val, node: ast.AST) -> Val | None:
    """One message of a source of messages."""
    tag = iterable.tag
    if tag in _ITERATED:
        family, one = _ITERATED[tag]
        walk.emit("receive", node, text=iterable.text, store=family, key=iterable)
        return Val(text=f"{iterable.text}[]", tag=one, taint=_WHOLE)
    if tag.startswith("stream:"):
        return Val(text=f"{iterable.text}[]", tag=tag[7:], taint=_WHOLE)
    if tag in ("kafka.message", "redis.entries", "redis.message", "pika.tuple"):
        return replace(iterable, text=f"{iterable.text}[]")
    return None


def unpacked(value: Val, index: int) -> str:
    """The tag of a part of a tuple that a broker gives."""
    if value.tag in ("kafka.message", "redis.entries"):
        return value.tag
    return _UNPACKED.get((value.tag, index), "")


def _settled(walk: Calls, call: Call) -> Val | None:
    """An ack, a nack, a retry."""
    name, tag = call.name, call.tag
    if call.target.function is not None or call.ref.startswith(("builtins.", "os.")):
        return None
    delivered = MESSAGE in call.receiver.taint or "message" in call.receiver.text
    settles = tag in _MESSAGES or (delivered and name in ("ack", "nack", "nak", "reject"))
    commits = tag == "kafka.consumer" and name in ("commit", "commit_async")
    if commits or (settles and name in _ACKS) or name in _ACKS_BY_NAME:
        walk.emit("ack", call.node, text=call.shown, key=call.argument(0, "offsets") if commits else None)
    elif (settles and name in _NACKS) or name in _NACKS_BY_NAME:
        walk.emit("nack", call.node, text=call.shown)
    elif name == "retry" and tag in ("celery.self", "celery.app"):
        walk.emit("retry", call.node, text=call.shown, key=Val(fields=dict(call.keywords)))
    else:
        return None
    return Val(literal=None, text=f"{name}()")


def asks_again(name: str) -> bool:
    """Whether raising ``name`` asks the broker to deliver again."""
    return name.partition("(")[0].rpartition(".")[2] in _AGAIN
