"""AWS Lambda on SQS: handles each record of a batch by itself, so that only failed ones are delivered again.

    @eo.once(store, key="order_id", max_attempts=5)
    def charge(order_id: str, amount: int) -> None: ...

    handler = sqs_batch(charge, read=lambda record: charge_arguments(record["body"]))

The event source mapping needs ``ReportBatchItemFailures``: without it Lambda takes the answer for success, and the
failed records are lost. SQS itself moves a message to the dead-letter queue after its ``maxReceiveCount``.

A claim is leased until Lambda ends the invocation, whatever ``lease=`` says: `sqs_batch` sees to that, and
`lease_until_timeout` for handlers of other events.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import msgspec

from effectonce.core.delivery_outcome import Ack
from effectonce.core.failure_log import log_failed_attempt
from effectonce.core.guarded_call.process_deadline import process_deadline
from effectonce.core.retry import Retry
from effectonce.core.run_sync import run_sync
from effectonce.core.shared_loop import shared_loop
from effectonce.errors import ConfigurationError
from effectonce.guard.dispatch import dispatcher
from effectonce.guard.once import Guarded

SqsRecord = Mapping[str, Any]

F = TypeVar("F", bound=Callable[[Any, Any], Any])


def lease_until_timeout(handler: F) -> F:
    """Lease all that a Lambda handler ``(event, context)`` guards until Lambda would end the invocation, and a second
    longer.

    So a claim of an invocation that exceeds its timeout is free a second later, and none lapses while the handler may
    still run. Nothing renews such a lease: an invocation that crashes earlier keeps its claims until then. ``lease=``
    and ``max_run=`` of the guards do not count here. ``context`` may be Lambda's, or that of a durable function.
    """

    @functools.wraps(handler)
    def handle(event: Any, context: Any) -> Any:
        with _limited_by(context):
            return handler(event, context)

    return handle  # type: ignore[return-value]


def _limited_by(context: Any) -> AbstractContextManager[None]:
    """Within it, claims are leased until the end of the invocation. A ``context`` without one, as in a test, changes
    nothing."""
    context = getattr(context, "lambda_context", context)  # of a durable function
    milliseconds_left = getattr(context, "get_remaining_time_in_millis", None)
    return nullcontext() if milliseconds_left is None else process_deadline(lambda: milliseconds_left() / 1000)


def from_json(record: SqsRecord) -> Any:
    """Decode the JSON body of a record."""
    return msgspec.json.decode(record["body"])


def sqs_batch(
    handler: Guarded[..., Any], *, read: Callable[[SqsRecord], Any] = from_json, retry: Retry | None = None
) -> Callable[[Mapping[str, Any], Any], dict[str, Any]]:
    """Make a Lambda handler for SQS events that calls ``handler``, which is under `once`, with each record.

    ``read`` turns a record into the handler's argument, or a tuple of arguments. The key must come from the producer:
    SQS gives a message that is sent again another ``messageId``. A record that cannot be read, or whose handler
    failed, is reported as failed, and SQS delivers it again. On a FIFO queue the records behind it in its group are
    reported, too, to keep their order. If the Lambda handler raises, the whole batch is delivered again; records that
    are done are skipped then. Claims are leased as by `lease_until_timeout`.
    """
    dispatch: Any = dispatcher(handler, retry=retry)
    is_async = inspect.iscoroutinefunction(handler)

    async def handle_record(record: SqsRecord) -> Exception | None:
        """Handle a record. Returns the error for which it must be delivered again, or None."""
        try:
            arguments = read(record)
            outcome = dispatch(*(arguments if isinstance(arguments, tuple) else (arguments,)))
            outcome = await outcome if is_async else outcome
        except ConfigurationError:
            raise
        except Exception as unreadable:
            what, then = {"SQS record": record["messageId"]}, "is delivered again, since it cannot be read"
            log_failed_attempt(what, unreadable, then, last=False)
            return unreadable
        return None if isinstance(outcome, Ack) else outcome.error

    async def handle_batch(records: list[SqsRecord]) -> dict[str, Any]:
        failed: list[dict[str, str]] = []
        failed_groups: set[str] = set()
        for record in records:
            group = _group(record)
            if group is None or group not in failed_groups:
                error = await handle_record(record)
                if error is None:
                    continue
            if group is not None:
                failed_groups.add(group)
            failed.append({"itemIdentifier": record["messageId"]})
        return {"batchItemFailures": failed}

    @lease_until_timeout
    def handle(event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        response = handle_batch(event["Records"])
        return shared_loop.run(response) if is_async else run_sync(response)

    return handle


def _group(record: SqsRecord) -> str | None:
    """Return the record's group on a FIFO queue. A standard queue has groups for fairness, without an order: None."""
    if not record.get("eventSourceARN", ".fifo").endswith(".fifo"):
        return None
    group: str | None = record.get("attributes", {}).get("MessageGroupId")
    return group
