"""SQS FIFO drops a second sending for five minutes; the record knows it for as long as it is kept.

python sqs_fifo.py 'sqs://?region=eu-west-1&fifo=yes' [STORE_URL]
"""

import asyncio
import os
import sys

import effectonce as eo

broker = eo.connect_broker(sys.argv[1])
store = eo.connect(sys.argv[2] if len(sys.argv) > 2 else "memory://")
worker = eo.Worker(broker, store=store, name="shipping")
queue = os.environ.get("QUEUE", "orders")
shipped: list[tuple[str, int]] = []
seen: list[str] = []


@worker.handler(queue, retention="30d")  # SQS may deliver for 14 days: a shorter retention is refused at the start
async def ship(message: eo.Message[dict[str, int]]) -> None:
    shipped.append((str(message.ordering_key), message.data["item"]))


def told(event: eo.Event) -> None:
    if event.kind in ("completed", "replayed"):
        seen.append(event.kind)
    if len(seen) == 7:
        worker.stop()


async def main() -> None:
    await broker.backend.declare(queue, group=worker.name)
    items = [
        eo.Message(data={"item": item}, ordering_key=f"{queue}:{customer}", id=f"{queue}-{customer}-{item}")
        for item in (1, 2, 3)
        for customer in ("ann", "bob")
    ]
    await broker.apublish(queue, items)
    await broker.apublish(queue, items[0])  # the same id: SQS itself drops it (MessageDeduplicationId)
    again = eo.Message(data={"item": 1}, ordering_key=f"{queue}:ann", key=items[0].key)
    await broker.apublish(queue, again)  # a new id, as after six minutes: SQS delivers it, and the record knows its key
    await asyncio.wait_for(worker.serve(), 60)
    await broker.aclose()


store.add_hook(told)
asyncio.run(main())
for customer in ("ann", "bob"):
    print(f"[shipped] {customer}: {[item for key, item in shipped if key.endswith(customer)]}")
print(f"[result]  8 sent, 7 delivered, {len(shipped)} shipped, each customer's in order")
sys.exit([item for key, item in shipped if key.endswith("ann")] != [1, 2, 3] or len(shipped) != 6)
