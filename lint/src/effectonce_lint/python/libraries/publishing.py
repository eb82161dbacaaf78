"""Publishes: messages sent to a broker, and tasks that are enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from effectonce_lint.python.taints import MESSAGE
from effectonce_lint.python.values import UNKNOWN_LITERAL, Effect, Value
from effectonce_lint.word_lists import tagged_pairs, word_set

from .providers import root_of

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_PUBLISH_METHODS = tagged_pairs(
    """
    kafka.producer:produce,send,send_and_wait pika.channel:basic_publish aiopika.exchange:publish
    kombu.producer:publish,put nats.client:publish nats.js:publish asb.sender:send_messages,schedule_messages
    aws.sqs:send_message,send_message_batch aws.sns:publish,publish_batch sns.topic:publish
    sqs.queue:send_message,send_messages aws.events:put_events aws.kinesis:put_record,put_records
    aws.lambda:invoke aws.stepfunctions:start_execution pubsub.publisher:publish pulsar.producer:send,send_async
    mqtt.client:publish stomp.connection:send redis:publish,xadd faststream.broker:publish eventgrid.client:send
    eventhub.producer:send_batch,send_event
    """
)
#: Methods that publish on an object of an unknown type too, if they have this argument; "": with any arguments.
_PUBLISH_METHODS_BY_NAME = {
    "basic_publish": "body",
    "send_message": "QueueUrl",
    "send_message_batch": "QueueUrl",
    "put_events": "Entries",
    "xadd": "",
}
_ID_FIELDS = word_set("MessageDeduplicationId message_id msg_id dedup_id Nats-Msg-Id nats-msg-id ce-id name")
_HEADERS = ("headers", "properties", "attributes", "MessageAttributes", "application_properties")
_MESSAGE_CLASSES = ("BasicProperties", "Message", "ServiceBusMessage")

ENQUEUES = word_set(
    "delay apply_async send send_with_options kiq defer defer_async enqueue enqueue_job schedule send_task configure"
)
_TASK_METHODS = word_set("delay apply_async kiq defer_async send_with_options")
_QUEUE_TAGS = word_set("celery.app rq.queue arq.pool huey procrastinate.app")


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call that publishes or enqueues; None for other calls."""
    target = call.receiver if call.receiver.tag else root_of(call.receiver)
    if target.tag == "eo.outbox":
        walk.emit("write", call.node, text=call.source_text, store="outbox", location="outbox")
        return Value()
    if target.tag == "kafka.producer" and call.name in ("begin_transaction", "transaction"):
        walk.producers.add(target.text)
        return Value(text=f"{call.name}()")
    required = _PUBLISH_METHODS_BY_NAME.get(call.name)
    is_unknown = not target.tag and not call.ref
    is_publish_by_name = is_unknown and required is not None and (not required or required in call.keywords)
    if (target.tag, call.name) in _PUBLISH_METHODS or is_publish_by_name:
        if not any(argument.text.endswith("reply_to") for argument in call.all_arguments()):
            effect = Effect("publish", "publishes a message")
            effect.key, effect.key_given = (None, True) if target.text in walk.producers else _message_id_of(call)
            walk.emit("effect", call.node, text=call.source_text, effect=effect)
        # a reply is harmless: the requester takes the first
        return Value(text=f"{call.source_text}()")
    return _interpret_enqueue(walk, call)


def _message_id_of(call: Call) -> tuple[Value | None, bool]:
    """The id that a message carries for its consumers to dedup by, and whether it has one. Computed headers count."""
    for name in _HEADERS:
        value = call.keywords.get(name)
        if value is not None and value.fields is None and value.literal is UNKNOWN_LITERAL and not value.items:
            return (value if MESSAGE in value.taint else None), True
    for name in _ID_FIELDS & call.keywords.keys():
        return call.keywords[name], True
    for holder in (*call.args, *call.keywords.values()):
        class_name = holder.text.partition("(")[0].rpartition(".")[2]
        if holder.tag == "dict" or class_name in _MESSAGE_CLASSES:
            for part in (holder, *(holder.fields or {}).values()):
                for name in _ID_FIELDS & (part.fields or {}).keys():
                    return (part.fields or {})[name], True
    return None, False


def _interpret_enqueue(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call that enqueues another task. That task is checked as a consumer of its own."""
    if call.name not in ENQUEUES or call.target.function is not None:
        return None
    is_task = call.receiver.function is not None or call.receiver.cls is not None
    is_queue = call.tag in _QUEUE_TAGS or call.ref.startswith(("django_rq.", "celery."))
    if not is_task and not is_queue and (call.name not in _TASK_METHODS or call.tag == "executor"):
        return None
    walk.emit("effect", call.node, text=call.source_text, effect=Effect("enqueue", "hands over to another task"))
    return Value(text=f"{call.source_text}()")
