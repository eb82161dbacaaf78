"""The small shop that the demos run: a payment, its message, and the card network that counts charges."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct, json

from effectonce.message import Message


class Payment(Struct, frozen=True):
    """What the customer owes."""

    payment_id: str
    amount: int
    currency: str


class Receipt(Struct, frozen=True):
    """What the card network answers to a charge."""

    number: int
    amount: int


def make_message() -> Message[Payment]:
    """Make the message of one payment, as its producer sends it: with one id for all deliveries."""
    return Message(type="payment.requested", data=Payment("pay_7f3a", 4200, "EUR"))


def encode_message(message: Message[Payment]) -> bytes:
    """Return the bytes on the wire: one line, the same for every delivery."""
    return json.encode(message)


def decode_message(body: bytes) -> Message[Payment]:
    return json.decode(body, type=Message[Payment])


def sqlite_url(file: Path) -> str:
    """Return the URL of the store in ``file``."""
    return f"sqlite:///{quote(file.as_posix())}"


class Ledger:
    """The card network: it charges whenever it is asked, but only once under a key.

    Every charge is a row in a file of its own, committed before the call returns, so that it survives the death of
    its caller.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        with closing(self.open()) as db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS charges "
                "(number INTEGER PRIMARY KEY, payment_id TEXT, amount INTEGER, key TEXT UNIQUE)"
            )

    def charge(self, payment: Payment, key: str | None = None) -> Receipt:
        """Charge, and return the receipt; for a known key, that of the first charge."""
        with closing(self.open()) as db:
            return self.charge_in(db, payment, key)

    @staticmethod
    def charge_in(db: sqlite3.Connection, payment: Payment, key: str | None = None) -> Receipt:
        """Charge in the transaction that is open on ``db``."""
        row = "INSERT INTO charges (payment_id, amount, key) VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET key = key"
        values = (payment.payment_id, payment.amount, key)
        ((number, amount),) = db.execute(f"{row} RETURNING number, amount", values).fetchall()
        return Receipt(number, amount)

    def count(self) -> int:
        """Count the charges."""
        with closing(self.open()) as db:
            (count,) = db.execute("SELECT count(*) FROM charges").fetchone()
        return int(count)

    def open(self, lock_timeout: float = 30) -> sqlite3.Connection:
        """Open a connection that waits up to ``lock_timeout`` seconds for another transaction."""
        return sqlite3.connect(self._file, timeout=lock_timeout, isolation_level=None)
