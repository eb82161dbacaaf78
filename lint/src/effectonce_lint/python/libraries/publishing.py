"""Publishes: messages handed to a broker, and work handed to another task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from effectonce_lint.python.values import UNKNOWN, Effect, Val
from effectonce_lint.word_lists import pairs, words

from .message_parts import MESSAGE
from .providers import root_of

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, Calls

_PUBLISHES = pairs(
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
#: Methods that publish whatever they are called on, if they are given this.
_BY_NAME = {
    "basic_publish": "body",
    "send_message": "QueueUrl",
    "send_message_batch": "QueueUrl",
    "put_events": "Entries",
    "xadd": "",
}
_IDS = words("MessageDeduplicationId message_id msg_id dedup_id Nats-Msg-Id nats-msg-id ce-id name")
_HEADERS = ("headers", "properties", "attributes", "MessageAttributes", "application_properties")
_MESSAGES = ("BasicProperties", "Message", "ServiceBusMessage")

ENQUEUES = words(
    "delay apply_async send send_with_options kiq defer defer_async enqueue enqueue_job schedule send_task configure"
)
_ONLY_TASKS = words("delay apply_async kiq defer_async send_with_options")
_QUEUES = words("celery.app rq.queue arq.pool huey procrastinate.app")


def called(walk: Calls, call: Call) -> Val | None:
    target = call.receiver if call.receiver.tag else root_of(call.receiver)
    if target.tag == "eo.outbox":
        walk.emit("write", call.node, text=call.shown, store="outbox", location="outbox")
        return Val()
    if target.tag == "kafka.producer" and call.name in ("begin_transaction", "transaction"):
        walk.producers.add(target.text)
        return Val(text=f"{call.name}()")
    known = (target.tag, call.name) in _PUBLISHES
    needs = _BY_NAME.get(call.name)
    by_name = needs is not None and not target.tag and not call.ref and (not needs or needs in call.keywords)
    if (known or by_name) and any(each.text.endswith("reply_to") for each in call.all()):
        return Val(text=f"{call.shown}()")  # an answer: whoever asked takes the first
    if known or by_name:
        effect = Effect("publish", "publishes a message")
        effect.key, effect.key_given = (None, True) if target.text in walk.producers else _id_of(call)
        walk.emit("effect", call.node, text=call.shown, effect=effect)
        return Val(text=f"{call.shown}()")
    return _enqueued(walk, call)


def _id_of(call: Call) -> tuple[Val | None, bool]:
    """The id that a message carries, for consumers downstream to dedup on. Headers out of sight may hold one."""
    for name in _HEADERS:
        value = call.keywords.get(name)
        if value is not None and value.fields is None and value.literal is UNKNOWN and not value.items:
            return (value if MESSAGE in value.taint else None), True
    for name in _IDS & call.keywords.keys():
        return call.keywords[name], True
    for holder in (*call.args, *call.keywords.values()):
        made = holder.text.partition("(")[0].rpartition(".")[2]
        if holder.tag == "dict" or made in _MESSAGES:
            for inner in (holder, *(holder.fields or {}).values()):
                for name in _IDS & (inner.fields or {}).keys():
                    return (inner.fields or {})[name], True
    return None, False


def _enqueued(walk: Calls, call: Call) -> Val | None:
    """Handing over to another task: that one is looked at by itself."""
    if call.name not in ENQUEUES or call.target.function is not None:
        return None
    task = call.receiver.function is not None or call.receiver.cls is not None
    queue = call.tag in _QUEUES or call.ref.startswith(("django_rq.", "celery."))
    if not task and not queue and (call.name not in _ONLY_TASKS or call.tag == "executor"):
        return None
    walk.emit("effect", call.node, text=call.shown, effect=Effect("enqueue", "hands over to another task"))
    return Val(text=f"{call.shown}()")
