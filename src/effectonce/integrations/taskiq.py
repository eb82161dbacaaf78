"""taskiq: a middleware that sends a task again later if it may not run now.

    broker = RedisStreamBroker(url).with_middlewares(IdempotencyMiddleware())

    @broker.task
    @eo.once(store, key="payment_id")
    async def charge(payment_id: str, amount: int) -> str: ...

The guard stands below ``@broker.task``. A duplicate of a finished task returns the first one's result. One that arrives
while the first runs, or while the store does not answer, has failed for taskiq and would be lost: this middleware sends
it again, under the same task id, after the time that the error says.

The broker decides when the tasks of a killed worker are delivered again: taskiq-redis does so after ``idle_timeout``
(ten minutes), and looks for them only after a new task has arrived.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from taskiq import NoResultError, TaskiqMiddleware
from taskiq.kicker import AsyncKicker

from effectonce.core.delivery_outcome import Redeliver, decide_delivery
from effectonce.errors import ConfigurationError, EffectOnceError

#: The label that counts how often a task was sent again.
REDELIVERIES_LABEL: Final = "effectonce_again"


class IdempotencyMiddleware(TaskiqMiddleware):
    """Sends a task again while another delivery runs it, or while the store does not answer.

    ``longest`` bounds a single pause, in seconds. The middleware waits itself, since not every broker can delay a
    message: if this process is killed meanwhile, the message is delivered again as long as it is not acked (taskiq's
    ``ack_type`` at ``when_executed`` or ``when_saved``).
    """

    def __init__(self, longest: float = 5.0) -> None:
        super().__init__()
        self._longest = longest

    async def on_error(self, message: Any, result: Any, exception: BaseException) -> None:
        if not isinstance(exception, EffectOnceError):
            return
        redeliveries = int(message.labels.get(REDELIVERIES_LABEL, 0))
        try:
            outcome = decide_delivery(exception, attempt=redeliveries + 1)
        except ConfigurationError:  # the program is wrong: taskiq reports it as a failed task
            return
        if not isinstance(outcome, Redeliver):
            return
        await asyncio.sleep(min(outcome.after, self._longest))
        labels = {**message.labels, REDELIVERIES_LABEL: redeliveries + 1}
        kicker: AsyncKicker[Any, Any] = AsyncKicker(task_name=message.task_name, broker=self.broker, labels=labels)
        await kicker.with_task_id(message.task_id).kiq(*message.args, **message.kwargs)
        result.error = NoResultError()  # the next delivery has the result
