"""Sending one batch to the store: what is sent again, what is split, and which error each operation gets."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Sequence

from effectonce.contracts import ConnectionLost, Contention, Port
from effectonce.core.cancellation import is_being_cancelled
from effectonce.core.interrupts import raise_interrupt
from effectonce.core.run_sync import pause_thread, run_sync
from effectonce.errors import ConfigurationError, StoreUnavailable
from effectonce.record import Batchable, Reply

MAX_CONTENTION_RETRIES = 5


def send_from_thread(port: Port, batch: Sequence[Batchable]) -> Sequence[Reply]:
    """Send ``batch`` on a sync port, with `send_batch`. An exception of a signal handler is raised: it is this
    thread's, and not an answer of the store."""
    return run_sync(send_batch(port, batch, pause_thread, raise_interrupt))


async def send_batch(
    port: Port,
    batch: Sequence[Batchable],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    let_pass: Callable[[Exception], None] = lambda error: None,
) -> Sequence[Reply]:
    """Send ``batch``; return one reply for each operation. A failure of the whole batch is the reply of each.

    A lost connection is tried once more, because every operation recognises its repetition. Contention is tried again,
    and then operation by operation, as after any other error, so that one bad operation harms itself only.
    ``let_pass`` is called with each error, and raises one that is not about the store. On an event loop all errors are
    replies, also that of a signal handler: raised here, it would reach the task that sends, and no caller.
    """
    lost = contended = 0
    while True:
        try:
            return await port.run(batch)
        except ConnectionLost as error:
            let_pass(error)
            lost += 1
            if lost > 1:
                return [error] * len(batch)
        except Contention as error:
            contended += 1
            if contended > MAX_CONTENTION_RETRIES:
                if len(batch) == 1:
                    return [_lost_every_race(error)]
                break
            await pause(random.uniform(0, 0.002 * 2**contended))
        except (StoreUnavailable, ConfigurationError) as error:
            let_pass(error)
            return [error] * len(batch)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            # The driver has cancelled itself. Sent again without end, the batch would keep the loop to itself.
            return [StoreUnavailable(f"the store access was ended: {error!r}")] * len(batch)
        except Exception as error:
            let_pass(error)
            if len(batch) == 1:
                return [error]
            break
    replies: list[Reply] = []
    for op in batch:
        replies += await send_batch(port, (op,), pause, let_pass)
        if isinstance(replies[-1], StoreUnavailable):  # it is down: do not ask it for each of the rest
            replies += [replies[-1]] * (len(batch) - len(replies))
            break
    return replies


def _lost_every_race(error: Contention) -> StoreUnavailable:
    wrapped = StoreUnavailable(
        f"an operation lost the race for its record {MAX_CONTENTION_RETRIES + 1} times and was not applied: {error}; "
        "retry it, or lower the concurrency on its key"
    )
    wrapped.__cause__ = error
    return wrapped


def copy_error(error: Exception) -> Exception:
    """A copy for one of several waiters: one object that is raised in many places would mix their tracebacks."""
    try:
        twin = copy.copy(error)
    except Exception as failure:  # its constructor takes what `copy` does not know of
        raise_interrupt(failure)
        return error
    twin.__cause__ = error.__cause__ or error
    return twin
