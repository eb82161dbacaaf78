"""The bank is down: retries, dead letters, a dry run, a redrive: python worker.py [BROKER_URL] [STORE_URL]"""

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
all_charged = asyncio.Event()


@eo.bypass_external_effects  # a redrive may leave this out: the customers had their mail with the first attempt
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
        all_charged.set()


async def main() -> None:
    global bank_is_up
    bank_is_up = False
    dlq = eo.DeadLetterQueue(worker, queue)
    bills = [eo.Message(data={"order": f"order-{number}"}) for number in (1, 2, 3)]
    await broker.backend.declare(queue, group=worker.name)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.serve())
        await broker.apublish(queue, bills)
        while await dlq.acount() < 3:  # noqa: ASYNC110 until they can be listed
            await asyncio.sleep(0.05)
        for dead in await dlq.alist():
            print(f"[dead]    {dead.message and dead.message.data['order']}: {dead.cause.why}, {dead.cause.text}")
        if os.environ.get("BANK") != "down":
            bank_is_up = True
            for preview in await dlq.aredrive(dry_run=True):
                print(f"[dry run] {preview.dead.message and preview.dead.message.data['order']}: {preview.fate}")
            await dlq.aredrive(rate=100, bypass_effects=True)
            await all_charged.wait()
        worker.stop()
    print(f"[result]  {len(charges)} charged, {await dlq.acount()} dead letters, {len(mails)} mails")
    await broker.aclose()


if __name__ == "__main__":
    asyncio.run(main())
