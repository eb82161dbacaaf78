"""`dispatcher`, for consumer loops that you write yourself: it decides how to answer the broker after each message.

    dispatch = eo.dispatcher(charge)               # charge is under @once

    for method, properties, body in channel.consume("payments"):                   # pika, for example
        match dispatch(json.loads(body)):
            case eo.Ack():
                channel.basic_ack(method.delivery_tag)
            case eo.Redeliver():
                channel.basic_nack(method.delivery_tag, requeue=True)
            case eo.Reject(error=error):
                channel.basic_nack(method.delivery_tag, requeue=False)             # to the dead-letter exchange

A duplicate of a handled message is `Ack`. While its first delivery is still running it is `Redeliver`, never `Ack`: the
first may still die. A message that can never succeed is `Reject`: keep it for an operator, with its bytes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from effectonce.core.argument_models import model_reader
from effectonce.core.delivery_outcome import Ack, DeliveryOutcome, decide_delivery, log_outcome
from effectonce.core.failure_log import caller_logs_failures
from effectonce.core.retry import Retry
from effectonce.errors import ConfigurationError
from effectonce.message import Message

from .once import Guarded

P = ParamSpec("P")
T = TypeVar("T")


@overload
def dispatcher(  # type: ignore[overload-overlap]
    handler: Guarded[P, Coroutine[Any, Any, T]], *, retry: Retry | None = None
) -> Callable[P, Coroutine[Any, Any, DeliveryOutcome]]: ...
@overload
def dispatcher(handler: Guarded[P, T], *, retry: Retry | None = None) -> Callable[P, DeliveryOutcome]: ...
def dispatcher(handler: Any, *, retry: Retry | None = None) -> Any:
    """Make a function that calls ``handler``, which is under `once`, and answers `Ack`, `Redeliver` or `Reject`.

    A dict becomes the pydantic model, dataclass or struct that the handler's annotation names; one that does not fit is
    `Reject`. The function raises only `ConfigurationError` (ack nothing then: the program is wrong) and what ends the
    process. ``retry`` says how long a message waits after an error, by the ``attempt`` of a `Message` as the first
    argument, and which errors are rejected at once. ``once(max_attempts=…)`` says how often it is tried: the store
    counts that.
    """
    if not isinstance(handler, Guarded):
        raise ConfigurationError(f"dispatcher takes a function under @once, not {handler!r}")
    policy = retry if retry is not None else Retry(None)
    call: Any = handler.call  # sync or async
    read = model_reader(handler)

    def decide(error: Exception, args: tuple[Any, ...]) -> DeliveryOutcome:
        if isinstance(error, ConfigurationError):
            raise error
        first = args[0] if args else None
        id, attempt = (first.id, first.attempt) if isinstance(first, Message) else ("", None)
        final = handler.policy.doubt_on_error or isinstance(error, handler.policy.permanent)
        outcome = decide_delivery(error, retry=policy, attempt=attempt, final=final)
        log_outcome(handler.policy.scope, outcome, id, attempt or 1)
        return outcome

    def dispatch(*args: Any, **kwargs: Any) -> DeliveryOutcome:
        token = caller_logs_failures.set(True)
        try:
            args, kwargs = read(args, kwargs)
            outcome = call(*args, **kwargs)
        except Exception as error:
            return decide(error, args)
        finally:
            caller_logs_failures.reset(token)
        return Ack(outcome.value, outcome.replayed)

    async def adispatch(*args: Any, **kwargs: Any) -> DeliveryOutcome:
        token = caller_logs_failures.set(True)
        try:
            args, kwargs = read(args, kwargs)
            outcome = await call(*args, **kwargs)
        except Exception as error:
            return decide(error, args)
        finally:
            caller_logs_failures.reset(token)
        return Ack(outcome.value, outcome.replayed)

    return adispatch if inspect.iscoroutinefunction(handler) else dispatch
