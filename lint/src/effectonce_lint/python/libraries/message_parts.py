"""The parts of a delivered message: its body, its fields, and what the broker generates for each delivery."""

from __future__ import annotations

from effectonce_lint.python.taints import (
    MESSAGE,
    OFFSET,
    PAYLOAD,
    STREAM_SEQUENCE,
    attempt_taint,
    field_taint,
    taint_details,
    unstable_taint,
)
from effectonce_lint.python.values import Value
from effectonce_lint.word_lists import word_set

#: Parts that are the whole body, and methods that convert it.
_WHOLE_BODY_NAMES = word_set(
    "body data payload value json content text detail Body Message decode strip model_dump dict read get_data"
    " get_json to_dict as_dict form get_body body_as_str copy raw Sns Data kinesis json_body"
)

#: Parts, by the tag of their message, that change with a redelivery or a resend, so that they cannot be a key.
_UNSTABLE_PARTS = {
    ("pika.method", "delivery_tag"): "the delivery tag",
    ("aiopika.message", "delivery_tag"): "the delivery tag",
    ("aiopika.message", "consumer_tag"): "the consumer tag",
    ("kombu.message", "delivery_tag"): "the delivery tag",
    ("sqs.message", "ReceiptHandle"): "the receipt handle",
    ("sqs.message", "receipt_handle"): "the receipt handle",
    ("sqs.message", "MessageId"): "the broker's MessageId",
    ("sqs.message", "message_id"): "the broker's MessageId",
    ("sqs.record", "receiptHandle"): "the receipt handle",
    ("sqs.record", "receipt_handle"): "the receipt handle",
    ("sqs.record", "messageId"): "the broker's MessageId",
    ("sqs.record", "message_id"): "the broker's MessageId",
    ("kafka.message", "offset"): OFFSET,
    ("asb.message", "lock_token"): "the lock token",
    ("asb.message", "sequence_number"): "the broker's sequence number",
    ("asb.message", "enqueued_sequence_number"): "the broker's sequence number",
    ("nats.message", "reply"): "the reply subject",
    ("nats.metadata", "sequence"): STREAM_SEQUENCE,
    ("pubsub.message", "ack_id"): "the ack id",
    ("pubsub.message", "message_id"): "the broker's message id",
    ("pulsar.message", "message_id"): "the broker's message id",
}
#: The same for names that mean this in a message of any kind.
_UNSTABLE_NAMES = {
    "delivery_tag": "the delivery tag",
    "ReceiptHandle": "the receipt handle",
    "receiptHandle": "the receipt handle",
    "receipt_handle": "the receipt handle",
}
#: Parts that count the attempts, so that each attempt would have a key of its own.
_ATTEMPT_COUNTS = {
    ("sqs.attributes", "ApproximateReceiveCount"): "the receive count",
    ("celery.request", "retries"): "the retry count",
    ("asb.message", "delivery_count"): "the delivery count",
    ("aiopika.message", "redelivered"): "the redelivered flag",
    ("pika.method", "redelivered"): "the redelivered flag",
    ("nats.metadata", "num_delivered"): "the delivery count",
}
#: Parts that are objects with a tag of their own.
_PART_TAGS = {
    ("sqs.response", "Messages"): "stream:sqs.message",
    ("lambda.event", "Records"): "stream:sqs.record",
    ("lambda.event", "records"): "stream:sqs.record",
    ("sqs.record", "attributes"): "sqs.attributes",
    ("sqs.message", "Attributes"): "sqs.attributes",
    ("nats.message", "metadata"): "nats.metadata",
    ("celery.self", "request"): "celery.request",
}


def mark_message_part(value: Value, base: Value, part: str) -> None:
    """Set taint and tag of ``value``, which is ``base.part`` or ``base["part"]`` of a message."""
    tag = base.tag
    if part_tag := _PART_TAGS.get((tag, part)):
        value.tag = part_tag
        value.taint = base.taint
        return
    if MESSAGE not in base.taint:
        return
    # the whole body and its fields are other parts than this one
    other_parts = {PAYLOAD, *map(field_taint, taint_details(base.taint, "field"))}
    inherited = base.taint - other_parts
    if name := _UNSTABLE_PARTS.get((tag, part)) or _UNSTABLE_NAMES.get(part):
        value.taint = inherited | {unstable_taint(name)}
    elif name := _ATTEMPT_COUNTS.get((tag, part)):
        value.taint = inherited | {attempt_taint(name)}
    elif part in _WHOLE_BODY_NAMES or not part:
        is_field = bool(taint_details(base.taint, "field"))
        value.taint = base.taint if is_field else base.taint | {PAYLOAD}
    else:
        value.taint = inherited | {field_taint(part)}


def is_stable(value: Value) -> bool:
    """Whether a value comes with the message, and is the same for each delivery of it."""
    return bool(value.taint) and not is_unstable(value)


def is_unstable(value: Value) -> bool:
    """Whether a value differs between deliveries of the same message."""
    return bool(taint_details(value.taint, "unstable"))


def message_parameter(name: str, tag: str = "", *, is_whole_body: bool = False) -> Value:
    """A parameter that is a field of the message, or, with ``is_whole_body``, all of it."""
    part = PAYLOAD if is_whole_body else field_taint(name)
    return Value(text=name, tag=tag, taint=frozenset({MESSAGE, part}))


BODY_PARAMETERS = word_set(
    "body data payload message msg event record value content job order envelope item request req ctx context"
    " notification command raw_message raw"
)
"""Names of parameters that hold a whole message rather than one of its fields."""
