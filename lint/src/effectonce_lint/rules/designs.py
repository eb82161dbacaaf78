"""Rules about designs and the settings of queues. P11, EO106, EO201 and EO301 apply to designs as well."""

from __future__ import annotations

from . import Rule

_QUEUE_WITHOUT_DEAD_LETTERS = """\
resource "aws_sqs_queue" "orders" {
  name                       = "orders"
  visibility_timeout_seconds = 360
}
"""
_QUEUE_WITH_DEAD_LETTERS = """\
resource "aws_sqs_queue" "orders" {
  name                       = "orders"
  visibility_timeout_seconds = SECONDS
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}

resource "aws_sqs_queue" "dead" {
  name                      = "orders-dlq"
  message_retention_seconds = 1209600
}
"""
_LAMBDA_MAPPING = """
resource "aws_lambda_event_source_mapping" "pay" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = "pay"
}
"""
_LAMBDA_WITH_TIMEOUT = """
resource "aws_lambda_function" "pay" {
  function_name = "pay"
  timeout       = 60
}

resource "aws_lambda_event_source_mapping" "pay" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.pay.arn
}
"""

RULES = [
    Rule(
        id="EO501",
        name="visibility-too-short",
        severity="warning",
        summary="The queue delivers a message again while its consumer may still be working on it.",
        why="""\
If the visibility timeout ends before the handler does, a second worker gets the message, and both run at once. AWS
recommends six times the function's timeout. It must at least be longer.""",
        bad=_QUEUE_WITH_DEAD_LETTERS.replace("SECONDS", "30") + _LAMBDA_WITH_TIMEOUT,
        good=_QUEUE_WITH_DEAD_LETTERS.replace("SECONDS", "360") + _LAMBDA_WITH_TIMEOUT,
        modes="Any; L keeps the second worker out while the first one's lease holds.",
        language="terraform",
    ),
    Rule(
        id="EO502",
        name="no-dead-letter-queue",
        severity="warning",
        summary="A queue that is consumed has no dead-letter queue: a poison message comes back until it is lost.",
        why="""\
A message that always fails is delivered again and again until the queue's retention drops it. Each time, its effects up
to the failure happen again. After a few attempts, move it to a queue that an operator looks at.""",
        bad=_QUEUE_WITHOUT_DEAD_LETTERS + _LAMBDA_MAPPING,
        good=_QUEUE_WITH_DEAD_LETTERS.replace("SECONDS", "360") + _LAMBDA_MAPPING,
        modes="Any; the dedup retention has to cover the dead-letter queue and the redrive as well.",
        language="terraform",
    ),
    Rule(
        id="EO503",
        name="broker-dedup-only",
        severity="warning",
        summary="The design relies on the broker's own deduplication, which covers sends only, and for minutes.",
        why="""\
SQS FIFO forgets a deduplication id after five minutes. Kafka's idempotent producer only knows its own session. Service
Bus only compares the sends of a few minutes. None of them prevents a redelivery after a crash. Guard the consumer.""",
        bad="""\
consumers:
  - name: charge-card
    queue: payments.fifo
    effects: [charge the card]
    dedup: SQS FIFO MessageDeduplicationId
""",
        good="""\
consumers:
  - name: charge-card
    queue: payments.fifo
    effects: [charge the card]
    dedup: inbox table, unique on message_id, in the same transaction
    retention: 30d
""",
        modes="T, K or L in the consumer, whatever the broker does.",
        language="yaml",
    ),
]
