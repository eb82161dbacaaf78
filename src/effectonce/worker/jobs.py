"""`Job`: a delivery in flight.

Which number of an attempt is used where:

    number                          counts                                      used for
    ``Delivery.attempt``            the broker's deliveries; where it counts    what follows
                                    none, `AttemptCounts` sets it
    ``Job.untried``                 those that this process gave back untried   what follows
    ``Job.broker_attempt``          deliveries without the untried ones         mode S; sending on with ``to=``; a job
                                                                                that no claim or start has counted
    ``Job.attempts_at(answer)``     the store's starts since the last redrive   whether a granted claim may start; dead
                                                                                letters
    ``Job.attempt``                 the starts that the store or the inbox      delays and limits of `Retry`, logs,
                                    counted since the last redrive              events
    ``Message.attempt``             the same                                    the handler
    ``attempts_before_redrive``     the store's starts before the redrive,      is taken off the store's count
                                    from a header
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import force_setattr

from effectonce.contracts import Delivery
from effectonce.core.codec import STORED_NONE
from effectonce.core.guarded_call.run import Run, StoreRun
from effectonce.message import Message
from effectonce.record import Answer

from .routes import HandlerRoute

USED_ATTEMPTS_HEADER: Final = "eo-used-attempts"
"""The header of a redriven message that says how many attempts were counted before."""


def read_used_attempts(headers: Mapping[str, str]) -> int:
    """Read how many attempts were counted before a redrive; 0 where the header is missing or not one of ours."""
    attempts = headers.get(USED_ATTEMPTS_HEADER, "")
    return int(attempts) if attempts.isdecimal() and len(attempts) < 9 else 0


class Job(Struct, eq=False, gc=False):
    """One delivery that can be handled, from its receipt to its settlement.

    It belongs to the event loop of its consumer. While its handler runs, only that task or thread writes to it, except
    for ``stale``. The cycle collector does not track jobs: no field may lead back to its job.
    """

    delivery: Delivery
    route: HandlerRoute
    message: Message[Any]
    key: str
    fingerprints: bytes
    lane: str  # only one job of a lane runs at a time: the ordering key, or its own key, which its duplicates share
    attempts_before_redrive: int = 0  # that the store had counted when it was redriven
    run: StoreRun | None = None  # with `store=`: its claim
    transaction_run: Run | None = None  # with `inbox=`: what `current()` returns in its handler, from its start on
    redriven: bool = False
    bypassing: bool = False  # redriven, and effects outside are to be skipped
    redelivered: bool = False  # it has been delivered before, or may have been
    untried: int = 0  # deliveries of it that were given back untried, as far as this process knows
    ended_before_claim: int = 0  # how many handlers of its pool had ended when it was claimed
    must_run_alone: bool = False  # a suspect: see `quarantine`
    started_at: float = 0.0  # mode T: when its handler was called; 0: it was not, since it is a duplicate
    stale: bool = False  # the broker has given it to another consumer
    acked: bool = False  # before it ran, for ``ack="first"``: the broker has forgotten it
    result: bytes | None = STORED_NONE  # what its record keeps; None: nothing, since the store rejected it
    outgoing: list[Message[Any]] | None = None  # to be sent once its record is complete

    @property
    def attempt(self) -> int:
        """Which attempt this is since it was last redriven: by the store's or the inbox's count of starts. By the
        broker's count of deliveries while nothing has started."""
        if self.transaction_run is not None:
            return self.transaction_run.attempt
        return self.broker_attempt if self.run is None else self.attempts_at(self.run.answer)

    def attempts_at(self, answer: Answer) -> int:
        """`attempt`, by the store's ``answer``. In mode S, which counts nothing, by the broker."""
        if self.route.policy.seen_set:
            return self.broker_attempt
        return answer.attempts - self.attempts_before_redrive

    def show_attempt(self, attempt: int) -> None:
        """Have `Message.attempt` say which attempt starts, in place of the broker's count of deliveries."""
        if attempt > 1 or self.delivery.attempt > 1:
            force_setattr(self.message, "attempt", attempt)

    @property
    def start_is_counted(self) -> bool:
        """Mode T: whether its start is counted, and committed, before its handler runs. A first delivery is counted
        only if it fails."""
        return self.redelivered

    @property
    def was_called(self) -> bool:
        """Mode T: whether its handler was called. What was raised before that comes from the inbox, and what was raised
        after it may come from the handler, which may use an inbox or a guard of its own."""
        return self.started_at > 0.0

    @property
    def broker_attempt(self) -> int:
        """Which attempt this is by the broker's count of deliveries, less those that were given back untried."""
        return max(1, self.delivery.attempt - self.untried)
