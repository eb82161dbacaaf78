"""Mutants of our own code: each breaks one thing that the promise rests on, and the explorer must catch it.

The list is data. A mutant names its number in the failure catalogue and the scenario to search, and is put in place by
swapping an attribute or two while the search runs. One that survives fails the build.

The mutants of the worker (`worker`, `worker_transactions`) swap none of its internals. They change what the explorer's
store port, consumer, publisher, database session and handler answer it, or do with its calls.
"""

from . import dispatch, flow, inbox, intents, joined, recovery, redrive, relay, saga, store, worker, worker_transactions
from .base import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "dispatch",
    "flow",
    "inbox",
    "intents",
    "joined",
    "recovery",
    "redrive",
    "relay",
    "saga",
    "store",
    "worker",
    "worker_transactions",
]
