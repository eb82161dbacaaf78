"""Loops that you write yourself: what to tell the broker about a message, whatever its handler came to.

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
first may still die. A message that no redelivery can mend is `Reject`: keep it for a person, with its bytes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from effectonce.core.argument_models import model_reader
from effectonce.core.delivery_outcome import Ack as Ack
from effectonce.core.delivery_outcome import DeliveryOutcome, decide_delivery
from effectonce.core.delivery_outcome import Redeliver as Redeliver
from effectonce.core.delivery_outcome import Reject as Reject
from effectonce.core.retry import Retry
from effectonce.errors import ConfigurationError
from effectonce.message import Message

from .once import Guarded

P = ParamSpec("P")
T = TypeVar("T")


Verdict = DeliveryOutcome


@overload
def dispatcher(  # type: ignore[overload-overlap]
    handler: Guarded[P, Coroutine[Any, Any, T]], *, retry: Retry | None = None
) -> Callable[P, Coroutine[Any, Any, Verdict]]: ...
@overload
def dispatcher(handler: Guarded[P, T], *, retry: Retry | None = None) -> Callable[P, Verdict]: ...
def dispatcher(handler: Any, *, retry: Retry | None = None) -> Any:
    """A function that calls ``handler``, which is under `once`, and answers what is to become of the message.

    A dict is made the pydantic model, dataclass or struct that the handler's annotation asks for; one that is none is
    `Reject`. It raises nothing but a `ConfigurationError` (then ack nothing: it is the program that is wrong) and what
    ends the process. ``retry`` says how long a message waits after an error, by the attempt that a `Message` as first
    argument tells, and which errors are dead at once; how often it is tried is ``once(max_attempts=…)``, which the
    store counts.
    """
    if not isinstance(handler, Guarded):
        raise ConfigurationError(f"dispatcher takes a function under @once, not {handler!r}")
    policy = retry if retry is not None else Retry(None)
    call: Any = handler.call  # of either colour
    read = model_reader(handler)

    def verdict(error: Exception, args: tuple[Any, ...]) -> Verdict:
        if isinstance(error, ConfigurationError):
            raise error
        first = args[0] if args else None
        return decide_delivery(
            error,
            retry=policy,
            attempt=first.attempt if isinstance(first, Message) else 1,
            final=handler.policy.doubt_on_error or isinstance(error, handler.policy.permanent),
        )

    def dispatch(*args: Any, **kwargs: Any) -> Verdict:
        try:
            args, kwargs = read(args, kwargs)
            outcome = call(*args, **kwargs)
        except Exception as error:
            return verdict(error, args)
        return Ack(outcome.value, outcome.replayed)

    async def adispatch(*args: Any, **kwargs: Any) -> Verdict:
        try:
            args, kwargs = read(args, kwargs)
            outcome = await call(*args, **kwargs)
        except Exception as error:
            return verdict(error, args)
        return Ack(outcome.value, outcome.replayed)

    return adispatch if inspect.iscoroutinefunction(handler) else dispatch
