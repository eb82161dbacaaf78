"""What the parts of a delivered message are: its body, its fields, and what the broker made up for this delivery."""

from __future__ import annotations

from effectonce_lint.python.values import Value
from effectonce_lint.word_lists import word_set

MESSAGE = "message"
PAYLOAD = "payload"

#: Parts that are the whole body again, and methods that only give it another form.
_WHOLE = word_set(
    "body data payload value json content text detail Body Message decode strip model_dump dict read get_data"
    " get_json to_dict as_dict form get_body body_as_str copy raw Sns Data kinesis json_body"
)

#: (tag, part): what is wrong with it as a key.
_UNSTABLE = {
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
    ("kafka.message", "offset"): "the offset",
    ("asb.message", "lock_token"): "the lock token",
    ("asb.message", "sequence_number"): "the broker's sequence number",
    ("asb.message", "enqueued_sequence_number"): "the broker's sequence number",
    ("nats.message", "reply"): "the reply subject",
    ("nats.metadata", "sequence"): "the stream sequence",
    ("pubsub.message", "ack_id"): "the ack id",
    ("pubsub.message", "message_id"): "the broker's message id",
    ("pulsar.message", "message_id"): "the broker's message id",
}
_ANYWHERE = {
    "delivery_tag": "the delivery tag",
    "ReceiptHandle": "the receipt handle",
    "receiptHandle": "the receipt handle",
    "receipt_handle": "the receipt handle",
}
_ATTEMPTS = {
    ("celery.request", "retries"): "the retry count",
    ("asb.message", "delivery_count"): "the delivery count",
    ("aiopika.message", "redelivered"): "the redelivered flag",
    ("pika.method", "redelivered"): "the redelivered flag",
    ("nats.metadata", "num_delivered"): "the delivery count",
}
_TAGS = {
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
    if found := _TAGS.get((tag, part)):
        value.tag = found
        value.taint = base.taint
        return
    if MESSAGE not in base.taint:
        return
    rest = frozenset(
        each for each in base.taint if each.startswith(("unstable:", "attempt:")) or each in (MESSAGE, "digest")
    )
    if what := _UNSTABLE.get((tag, part)) or _ANYWHERE.get(part):
        value.taint = rest | {f"unstable:{what}"}
    elif what := _ATTEMPTS.get((tag, part)):
        value.taint = rest | {f"attempt:{what}"}
    elif tag == "sqs.attributes" and part == "ApproximateReceiveCount":
        value.taint = rest | {"attempt:the receive count"}
    elif part in _WHOLE or not part:
        value.taint = (
            base.taint | {PAYLOAD} if not any(each.startswith("field:") for each in base.taint) else base.taint
        )
    else:
        value.taint = rest | {f"field:{part}"}


def message_parameter(name: str, tag: str = "", *, whole: bool = False) -> Value:
    """A parameter that a message, or a part of it, is delivered by."""
    taint = {MESSAGE}
    if whole:
        taint.add(PAYLOAD)
    else:
        taint.add(f"field:{name}")
    return Value(text=name, tag=tag, taint=frozenset(taint))


BODIES = word_set(
    "body data payload message msg event record value content job order envelope item request req ctx context"
    " notification command raw_message raw"
)
"""Names of parameters that hold a whole message rather than one of its fields."""
