"""A bank that is down, dead letters, a dry run, a redrive: python dlq_redrive.py [BROKER_URL]"""

import asyncio
import os
import sys

import effectonce as eo

broker = eo.connect_broker(sys.argv[1] if len(sys.argv) > 1 else "memory://")
store = eo.connect("memory://")
worker = eo.Worker(broker, store=store, name="billing")
queue = os.environ.get("QUEUE", "payments")
bank_is_up = False
charges: list[str] = []
mails: list[str] = []
all_three = asyncio.Event()


@eo.bypass_external_effects
async def mail(order: str) -> None:
    mails.append(order)


@worker.handler(queue, retry=eo.Retry(2, first="10ms"))
async def charge(message: eo.Message[dict[str, str]]) -> None:
    await mail(message.data["order"])
    if not bank_is_up:
        raise ConnectionError("the bank does not answer")
    charges.append(message.data["order"])
    if len(charges) == 3:
        all_three.set()


async def wait_for_dead_letters(dlq: eo.DeadLetterQueue) -> None:
    for _ in range(600):
        if await dlq.acount() == 3:
            return
        await asyncio.sleep(0.05)


async def main() -> None:
    global bank_is_up
    dlq = eo.DeadLetterQueue(worker, queue)
    await broker.backend.declare(queue, group=worker.name)
    serving = asyncio.create_task(worker.serve())
    await broker.apublish(queue, [eo.Message(data={"order": f"order-{number}"}) for number in (1, 2, 3)])
    await wait_for_dead_letters(dlq)
    for dead in await dlq.alist():
        print(f"[dead]    {dead.message and dead.message.data}: {dead.cause.why}, {dead.cause.text}")

    bank_is_up = True
    for each in await dlq.aredrive(dry_run=True):
        print(f"[dry run] {each.dead.message and each.dead.message.data}: {each.fate}")
    print(f"[dry run] {await dlq.acount()} are still there, {len(charges)} charged")

    await dlq.aredrive(rate=100, bypass_effects=True)  # the customers have had their mail
    await all_three.wait()
    worker.stop()
    await serving
    print(f"[result]  {len(charges)} charged, {await dlq.acount()} dead letters, {len(mails)} mails")
    await broker.aclose()


asyncio.run(main())
sys.exit(sorted(charges) != ["order-1", "order-2", "order-3"])
