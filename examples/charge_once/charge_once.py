"""One payment, delivered twice, charged once: python charge_once.py [STORE_URL]"""

import os
import sys

import effectonce as eo

store = eo.connect(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("EFFECTONCE_STORE", "memory://"))
charges: list[str] = []


@eo.once(store, scope="examples:charge_once")  # the first argument is a Message, so its id is the key
def charge(message: eo.Message[dict[str, object]]) -> str:
    charges.append(message.id)
    print(f"[charge]  {message.data['payment_id']}: {message.data['amount']} {message.data['currency']}")
    return f"receipt-{len(charges)}"


payment = eo.Message(type="payment.requested", data={"payment_id": "pay_7f3a", "amount": "42.00", "currency": "EUR"})
with store:
    for delivery in (1, 2):  # the queue delivers at least once; today, twice
        outcome = charge.call(payment)
        print(f"[deliver] {delivery}: {outcome.value}, {'replayed' if outcome.replayed else 'charged'}")

print(f"[result]  2 deliveries, {len(charges)} charge(s)")
sys.exit(len(charges) != 1)
