"""Messages that a handler returns (``to=``): kept in its record, sent after that, and acked last (F52).

Where a worker dies before it has sent them, the next delivery finds the messages in the record and sends them with the
same ids. So none is lost, and a consumer that receives one twice can recognise it.
"""

from __future__ import annotations

from typing import Any

from effectonce.core.codec import Unstorable
from effectonce.core.tracing import carry_trace, continue_trace
from effectonce.errors import ConfigurationError
from effectonce.message import Message

from .jobs import Job


def run_handler(job: Job) -> Any:
    """Run a handler whose result is forwarded."""
    if job.message.headers:  # most messages have none
        continue_trace(job.message.headers)
    if job.route.is_async:
        return _run_async_handler(job)
    return _store_result(job, job.route.function(job.message))


async def _run_async_handler(job: Job) -> None:
    _store_result(job, await job.route.function(job.message))


def _store_result(job: Job, value: Any) -> Any:
    if hasattr(value, "__await__"):
        return value  # of a plain `def`; the pool refuses it
    name = job.route.name
    if value is None:
        messages = []
    elif isinstance(value, Message):
        messages = [value]
    else:
        messages = value
    if not isinstance(messages, list) or not all(isinstance(message, Message) for message in messages):
        raise ConfigurationError(f"{name} has to=, so it returns a Message, a list of them or None, not {value!r:.100}")
    messages = [carry_trace(message) for message in messages]
    try:
        job.result = job.route.policy.codec.encode(messages)
    except Unstorable as error:
        raise ConfigurationError(
            f"what {name} sends on cannot be kept: {error}; its data must be plain JSON values, and not too large"
        ) from error
    job.outgoing = messages
    return None
