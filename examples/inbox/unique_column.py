"""A unique column of your own says which requests are the same: python unique_column.py [FILE]"""

import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import effectonce as eo

FILE = sys.argv[1] if len(sys.argv) > 1 else "payments.db"
payments = eo.Inbox(scope="payments").on_table("payments", column="idempotency_key")


def connect() -> sqlite3.Connection:
    return sqlite3.connect(FILE, timeout=30)


def create_payment(key: str, amount: int) -> tuple[int, bool]:
    """Return the number of the payment under ``key``, and whether this request made it."""
    with closing(connect()) as conn, conn:
        payment = payments.insert(conn, key, {"amount": amount})  # in your transaction, beside your other writes
        return payment.row["number"], payment.was_inserted


with closing(connect()) as conn, conn:
    conn.execute(
        "CREATE TABLE IF NOT EXISTS payments "
        "(number INTEGER PRIMARY KEY, idempotency_key TEXT NOT NULL UNIQUE, amount INTEGER NOT NULL)"
    )
requests = [(f"pay_{number}", 100 * number) for number in range(1, 6)] * 4
with ThreadPoolExecutor(8) as clients:
    answers = list(clients.map(lambda request: create_payment(*request), requests))
made = sum(inserted for _, inserted in answers)
numbers = {(key, number) for (key, _), (number, _) in zip(requests, answers, strict=True)}
print(f"[result] {len(requests)} requests, {made} made a payment, {len(numbers)} different answers")
sys.exit(made not in (5, 0) or len(numbers) != 5)  # 0: an earlier run made them all
