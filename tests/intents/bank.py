"""A provider that keeps keys, in this process, and that can be told to misbehave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import effectonce as eo
from effectonce.intents.operation import Intent


class Payment(msgspec.Struct):
    id: str
    amount: int


class Answer(Exception):
    """An HTTP error as SDKs raise it."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(f"{status} {code}")
        self.http_status, self.code = status, code


class Bank:
    """A provider that keeps keys, as Stripe v1 does: what was executed under a key is not executed again."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.seen: list[str] = []
        self.kept: dict[str, str] = {}
        self.before: Callable[[], None] = lambda: None  # what goes wrong before it executes
        self.after: Callable[[], None] = lambda: None  # and after

    def charge(self, intent: Intent[Payment]) -> str:
        key = intent.headers["Idempotency-Key"]
        self.seen.append(key)
        self.before()
        if key not in self.kept:
            self.charges.append(intent.request.id)
            self.kept[key] = f"ch_{len(self.charges)}"
        self.after()
        return self.kept[key]


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def unknown(charge: Any, bank: Bank) -> None:
    """One charge that happened, and whose reply was lost."""
    bank.after = raising(TimeoutError())
    with pytest.raises(eo.OutcomeUnknown):
        charge(PAYMENT, key="pay_1")
    bank.after = lambda: None


PAYMENT = Payment("pay_1", 4200)
