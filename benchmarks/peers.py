"""The peers, each used as its own documentation says, doing the same job as our guard."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Handler = Callable[..., Any]


@dataclass
class _Entry:
    state: str
    expires: float
    owner: object
    result: Any = None


def handwritten(lease: float = 30.0, retention: float = 86_400.0) -> Callable[[Handler], Handler]:
    """The guard that a careful engineer writes in an afternoon: a dict, a lock, a lease, a result.

    It compares the owner before it records (else a late finisher overwrites its successor), and frees on error. It
    has no token, attempts, heartbeat, waiting, fingerprint, events or type-checked result.
    """

    def decorate(function: Handler) -> Handler:
        entries: dict[tuple[str, str], _Entry] = {}
        lock = threading.Lock()
        scope = f"{function.__module__}:{function.__qualname__}"

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            key = (scope, kwargs["payment_id"] if "payment_id" in kwargs else args[0])
            owner = object()
            with lock:
                now = time.monotonic()
                entry = entries.get(key)
                if entry is not None and entry.expires > now:
                    if entry.state == "done":
                        return entry.result
                    raise RuntimeError("in progress")
                entries[key] = _Entry("claimed", now + lease, owner)
            try:
                result = function(*args, **kwargs)
            except BaseException:
                with lock:
                    if entries[key].owner is owner:
                        del entries[key]
                raise
            with lock:
                entry = entries[key]
                if entry.owner is not owner:
                    raise RuntimeError("lease lost")
                entry.state, entry.result, entry.expires = "done", result, time.monotonic() + retention
            return result

        return guarded

    return decorate


def powertools_in_memory() -> Callable[[Handler], Handler]:
    """aws-lambda-powertools' `idempotent_function` over the smallest in-memory persistence layer it allows."""
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.exceptions import (
        IdempotencyItemAlreadyExistsError,
        IdempotencyItemNotFoundError,
    )
    from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer

    class Memory(BasePersistenceLayer):
        def __init__(self) -> None:
            super().__init__()
            self.records: dict[str, Any] = {}
            self.lock = threading.Lock()

        def _get_record(self, idempotency_key: str) -> Any:
            try:
                return self.records[idempotency_key]
            except KeyError:
                raise IdempotencyItemNotFoundError from None

        def _put_record(self, data_record: Any) -> None:
            with self.lock:
                if data_record.idempotency_key in self.records:
                    raise IdempotencyItemAlreadyExistsError
                self.records[data_record.idempotency_key] = data_record

        def _update_record(self, data_record: Any) -> None:
            self.records[data_record.idempotency_key] = data_record

        def _delete_record(self, data_record: Any) -> None:
            del self.records[data_record.idempotency_key]

    def decorate(function: Handler) -> Handler:
        guarded = idempotent_function(
            data_keyword_argument="payment_id", persistence_store=Memory(), config=IdempotencyConfig()
        )(function)
        return lambda payment_id, amount: guarded(payment_id=payment_id, amount=amount)

    return decorate


def idemkit_sync(backend: Any) -> Callable[[Handler], Handler]:
    from idemkit import MethodConfig, idempotent_sync

    decorated: Callable[[Handler], Handler] = idempotent_sync(
        backend=backend, config=MethodConfig(key_fields=["payment_id"], strict_keys=False)
    )
    return decorated


def idemkit_async(backend: Any) -> Callable[[Handler], Handler]:
    from idemkit import MethodConfig, idempotent

    decorated: Callable[[Handler], Handler] = idempotent(
        backend=backend, config=MethodConfig(key_fields=["payment_id"], strict_keys=False)
    )
    return decorated


def babelqueue_wrapped() -> Callable[[Handler], Handler]:
    """BabelQueue's `idempotency.wrap`: a seen-set without claims or results, so less work than ours."""
    from babelqueue.idempotency import InMemoryStore, wrap

    def decorate(function: Handler) -> Handler:
        guarded = wrap(InMemoryStore(), lambda data, meta: function(meta["id"], data))
        return lambda payment_id, amount: guarded(amount, {"id": payment_id})

    return decorate
