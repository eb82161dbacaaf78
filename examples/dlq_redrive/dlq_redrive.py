"""A bank that is down, dead letters, a dry run, a redrive: python dlq_redrive.py [BROKER_URL] [STORE_URL]"""

import asyncio
import os
import sys

import effectonce as eo

given = [*sys.argv[1:], "", ""] if __name__ == "__main__" else ["", ""]
broker = eo.connect_broker(given[0] or os.environ.get("EFFECTONCE_BROKER", "memory://"))
store = eo.connect(given[1] or os.environ.get("EFFECTONCE_STORE", "memory://"))
worker = eo.Worker(broker, store=store, name="billing")
queue = os.environ.get("QUEUE", "bills")
bank_is_up = True
charges: list[str] = []
mails: list[str] = []
all_three = asyncio.Event()


@eo.bypass_external_effects
async def mail(order: str) -> None:
    mails.append(order)
    print(f"[mail]    {order}")


@worker.handler(queue, retry=eo.Retry(2, first="10ms"))
async def charge(message: eo.Message[dict[str, str]]) -> None:
    await mail(message.data["order"])
    if not bank_is_up:
        raise ConnectionError("the bank does not answer")
    charges.append(message.data["order"])
    print(f"[charge]  {message.data['order']}")
    if len(charges) == 3:
        all_three.set()


async def main() -> None:
    global bank_is_up
    bank_is_up = False
    dlq = eo.DeadLetterQueue(worker, queue)
    await broker.backend.declare(queue, group=worker.name)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.serve())
        await broker.apublish(queue, [eo.Message(data={"order": f"order-{number}"}) for number in (1, 2, 3)])
        while await dlq.acount() < 3:  # noqa: ASYNC110 until they can be listed
            await asyncio.sleep(0.05)
        for dead in await dlq.alist():
            print(f"[dead]    {dead.message and dead.message.data}: {dead.cause.why}, {dead.cause.text}")
        if os.environ.get("BANK") != "down":
            bank_is_up = True
            await redrive(dlq)
            await all_three.wait()
        worker.stop()
    print(f"[result]  {len(charges)} charged, {await dlq.acount()} dead letters, {len(mails)} mails")
    await broker.aclose()


async def redrive(dlq: eo.DeadLetterQueue) -> None:
    for each in await dlq.aredrive(dry_run=True):
        print(f"[dry run] {each.dead.message and each.dead.message.data}: {each.fate}")
    print(f"[dry run] {await dlq.acount()} are still there, {len(charges)} charged")
    await dlq.aredrive(rate=100, bypass_effects=True)  # the customers have had their mail


if __name__ == "__main__":
    asyncio.run(main())
