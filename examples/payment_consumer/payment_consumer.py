"""A consumer that charges cards and keeps a log of what it is about to do: python payment_consumer.py [sqlite:///FILE]"""

import os
import sqlite3
import sys

import msgspec

import effectonce as eo

URL = sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("EFFECTONCE_STORE", "")
URL = URL or "sqlite:///payments.db"
store = eo.connect(URL)
intents = eo.Intents(store, scope="payments")


class Payment(msgspec.Struct):
    id: str
    amount: int


class CardDeclined(Exception):
    """As an SDK raises it: with the status of the provider's answer."""

    http_status, code = 402, "card_declined"


class Provider:
    """A payment API that keeps keys, and a mail API that does not. Some of their answers get lost."""

    def __init__(self) -> None:
        self.charges: dict[str, str] = {}  # by idempotency key
        self.mails: list[str] = []

    def charge(self, payment: Payment, headers: dict[str, str]) -> str:
        if payment.id == "pay_declined":
            raise CardDeclined("this card is declined")
        key = headers["Idempotency-Key"]
        if key not in self.charges:
            self.charges[key] = f"ch_{len(self.charges) + 1}"
            print(f"  [charge] {payment.id}: {payment.amount}")
            if payment.id == "pay_lost":
                raise TimeoutError("charged, but the answer never came")
        return self.charges[key]

    def mail(self, payment: Payment) -> None:
        self.mails.append(payment.id)
        print(f"  [mail]   {payment.id}")
        if payment.id == "pay_lost":
            raise TimeoutError("sent, or not: there is no key to ask by")


provider = Provider()


@intents.operation("stripe", "charge")
def charge(intent: eo.Intent[Payment]) -> str:
    return provider.charge(intent.request, intent.headers)


@intents.operation("ses", "receipt", without_key="at-most-once")
def receipt(intent: eo.Intent[Payment]) -> None:
    provider.mail(intent.request)


def consume(db: sqlite3.Connection, payment: Payment) -> None:
    """One delivery: the charge, the row and the end of the intent are one; the mail is an effect of its own."""
    with charge.send(payment, key=payment.id) as sent, db:
        db.execute("BEGIN")
        if not sent.replayed:
            db.execute("INSERT INTO paid VALUES (?, ?)", (payment.id, sent.result))
        sent.complete(db)
    receipt(payment, key=payment.id)


PAYMENTS = [Payment("pay_good", 4200), Payment("pay_lost", 1900), Payment("pay_declined", 700)]


def main() -> int:
    store.migrate()
    db = sqlite3.connect(URL.removeprefix("sqlite:///"), isolation_level=None)
    db.execute("CREATE TABLE IF NOT EXISTS paid (id TEXT PRIMARY KEY, charge TEXT NOT NULL)")
    for payment in PAYMENTS * 3:  # the queue delivers until it is acked, and then once more
        try:
            consume(db, payment)
            print(f"[ack]   {payment.id}")
        except eo.Retryable as error:
            print(f"[nack]  {payment.id}: {type(error).__name__}")
        except eo.InDoubt:
            print(f"[park]  {payment.id}: in doubt")
        except (CardDeclined, eo.PermanentFailure):
            print(f"[dead]  {payment.id}: declined")
    (paid,) = db.execute("SELECT count(*) FROM paid").fetchone()
    db.close()
    doubts = [intents.log(record).key for record in intents.in_doubt()]
    summary = (
        f"{len(provider.charges)} charges, {paid} paid, {len(provider.mails)} mails, in doubt: {', '.join(doubts)}"
    )
    print(f"[result] {len(PAYMENTS) * 3} deliveries: {summary}")
    effects = len(provider.charges), provider.mails
    once = effects in ((2, ["pay_good", "pay_lost"]), (0, []))  # none: on the file of a run before, which had them
    return not once or (paid, doubts) != (2, ["pay_lost"])


if __name__ == "__main__":
    with store:
        sys.exit(main())
