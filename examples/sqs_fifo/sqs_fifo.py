"""SQS FIFO drops a second sending for five minutes; the record knows it for as long as it is kept.

python sqs_fifo.py ['sqs://?region=eu-west-1&fifo=yes'] [STORE_URL]
"""

import os
import sys
import time

import effectonce as eo

given = [*sys.argv[1:], "", ""]
broker = eo.connect_broker(given[0] or "sqs://?region=eu-west-1&fifo=yes")
store = eo.connect(given[1] or "sqlite:///shipments.db")
worker = eo.Worker(broker, store=store, name="shipping")
queue = os.environ.get("QUEUE", "orders")
today = time.time_ns()  # in the ids, so that SQS does not take another run's orders for these
shipped: list[tuple[str, int]] = []
delivered: list[str] = []


@worker.handler(queue, retention="30d")  # SQS may deliver for 14 days: a shorter retention is refused at the start
async def ship(message: eo.Message[dict[str, int]]) -> None:
    shipped.append((str(message.ordering_key), message.data["item"]))


def on_event(event: eo.Event) -> None:
    if event.kind in ("completed", "replayed") and str(today) in event.key:  # and not what a killed run has left
        delivered.append(event.key)
    if len(delivered) == 7:
        worker.stop()


items = [
    eo.Message(data={"item": item}, ordering_key=f"{customer}-{today}", id=f"{customer}-{today}-{item}")
    for item in (1, 2, 3)
    for customer in ("ann", "bob")
]
with broker:
    broker.declare(queue, group=worker.name)
    broker.publish(queue, items)
    broker.publish(queue, items[0])  # the same id: SQS itself drops it (MessageDeduplicationId)
    again = eo.Message(data={"item": 1}, ordering_key=f"ann-{today}", key=items[0].key)
    broker.publish(queue, again)  # a new id, as after six minutes: SQS delivers it, and the record knows its key
store.add_hook(on_event)
worker.run()
orders = {customer: [item for key, item in shipped if key == f"{customer}-{today}"] for customer in ("ann", "bob")}
for customer, shipments in orders.items():
    print(f"[shipped] {customer}: {shipments}")
print(f"[result]  8 sent, {len(delivered)} delivered, {sum(map(len, orders.values()))} shipped")
sys.exit(orders != {"ann": [1, 2, 3], "bob": [1, 2, 3]})
