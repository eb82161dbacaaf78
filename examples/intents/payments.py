"""A consumer that logs each call before it is made: python payments.py [sqlite:///FILE]"""

import os
import sqlite3
import sys

import effectonce as eo

URL = sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("EFFECTONCE_STORE", "")
store = eo.connect(URL := URL or "sqlite:///payments.db")
intents = eo.Intents(store, scope="payments")
charges: dict[str, str] = {}  # what the card network did, by idempotency key
mails: list[str] = []


class CardDeclined(Exception):
    http_status, code = 402, "card_declined"  # as an SDK raises it, with the status of the response


@intents.operation("stripe", "charge")
def charge(intent: eo.Intent[str]) -> str:
    if intent.request == "pay_declined":
        raise CardDeclined("this card is declined")
    key = intent.headers["Idempotency-Key"]  # the same for every send of this payment
    if key not in charges:
        charges[key] = f"ch_{len(charges) + 1}"
        print(f"  [charge] {intent.request}")
        if intent.request == "pay_lost":
            raise TimeoutError("charged, but the response was lost")
    return charges[key]


@intents.operation("ses", "receipt", without_key="at-most-once")
def receipt(intent: eo.Intent[str]) -> None:
    mails.append(intent.request)
    print(f"  [mail]   {intent.request}")
    if intent.request == "pay_lost":
        raise TimeoutError("sent or not: there is no key to ask by")


def consume(db: sqlite3.Connection, payment: str) -> None:
    """Handle one delivery: the row and the completion of the charge are one commit; the mail is a second effect."""
    with charge.send(payment, key=payment) as sent, db:
        db.execute("BEGIN")
        if not sent.replayed:
            db.execute("INSERT INTO paid VALUES (?, ?)", (payment, sent.result))
        sent.complete(db)
    receipt(payment, key=payment)


def main() -> None:
    store.migrate()
    db = sqlite3.connect(URL.removeprefix("sqlite:///"), isolation_level=None)
    db.execute("CREATE TABLE IF NOT EXISTS paid (id TEXT PRIMARY KEY, charge TEXT NOT NULL)")
    for payment in ["pay_good", "pay_lost", "pay_declined"] * 3:  # three deliveries of each
        try:
            consume(db, payment)
            print(f"[ack]  {payment}")
        except (eo.EffectOnceError, CardDeclined) as error:  # a Retryable is redelivered; the others are dead letters
            print(f"[{'nack' if isinstance(error, eo.Retryable) else 'dead'}] {payment}: {type(error).__name__}")
    [paid] = db.execute("SELECT count(*) FROM paid").fetchone()
    in_doubt = ", ".join(intents.log(record).key for record in intents.in_doubt())
    print(f"[result] 9 deliveries: {len(charges)} charges, {paid} paid, {len(mails)} mails, in doubt: {in_doubt}")


if __name__ == "__main__":
    with store:
        main()
