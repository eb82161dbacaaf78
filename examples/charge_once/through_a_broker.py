"""One payment, sent twice through a broker, charged once: python through_a_broker.py [BROKER_URL] [STORE_URL]"""

import os
import sys

import effectonce as eo

given = [*sys.argv[1:], "", ""]
broker = eo.connect_broker(given[0] or os.environ.get("EFFECTONCE_BROKER", "memory://"))
store = eo.connect(given[1] or os.environ.get("EFFECTONCE_STORE", "memory://"))
worker = eo.Worker(broker, store=store, name="charge-once")
queue = os.environ.get("QUEUE", "payments")
charges: list[str] = []
deliveries: list[str] = []


@worker.handler(queue, type="payment.requested")
async def charge(message: eo.Message[dict[str, str]]) -> None:
    charges.append(message.key)
    print(f"[charge]  {message.data['payment_id']}: {message.data['amount']} {message.data['currency']}")


def on_event(event: eo.Event) -> None:
    if event.kind in ("completed", "replayed"):
        deliveries.append(event.kind)
        print(f"[deliver] {len(deliveries)}: {'charged' if event.kind == 'completed' else 'known, acked'}")
    if len(deliveries) >= 2:
        worker.stop()


payment = {"payment_id": "pay_7f3a", "amount": "42.00", "currency": "EUR"}
with broker:
    broker.declare(queue, group=worker.name)
    for _ in range(2):  # the shop's request timed out, and it sent the payment again: another message, the same key
        broker.publish(queue, eo.Message(type="payment.requested", data=payment, key=f"{queue}:pay_7f3a"))
store.add_hook(on_event)
worker.run()
before = ", an earlier run has charged it" if deliveries and not charges else ""  # records outlive the process
print(f"[result]  {len(deliveries)} deliveries, {len(charges)} charge(s){before}")
sys.exit(len(deliveries) < 2 or len(charges) > 1)
