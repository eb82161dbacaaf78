"""A shop at three in the morning: something in every state that the dashboard has a page for.

``python -m tests.dashboard.world FOLDER`` makes one and says what to start beside it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import effectonce as eo
from effectonce.dashboard.sources import Sources
from effectonce.record import Claim, Settlement
from effectonce.telemetry.audit_log import AuditLog

SECOND = 1_000_000
#: The audit log so far: by whom, action, target, outcome, detail.
AUDIT_ENTRIES = (
    ("cron@night", "records purge", "sqlite:///shop.db", "done", "214 deleted"),
    ("grace@desk", "sagas resolve", "order-fulfilment order-1990", "done", "retry"),
    ("grace@desk", "records resolve", "charge-card pay_1871", "failed: [not-in-doubt] it is done", "abandon"),
    ("ada (operator, dashboard)", "outbox unpark", "sqlite:///shop.db outbox", "done", "17 18"),
    ("ada (operator, dashboard)", "dlq redrive", "orders of billing", "asked", "3 chosen: 4, 5, 6"),
    ("ada (operator, dashboard)", "dlq redrive", "orders of billing", "done", "3 chosen: 4, 5, 6"),
)
SCRIPT = "<script>alert(1)</script>"


class World:
    """A store, a broker and a program, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'shop.db'}"
        self.broker_url = f"sqlite:///{folder / 'queue.db'}"
        self.store = eo.connect(self.url, sweep_every=None)
        self.broker = eo.connect_broker(self.broker_url)
        self.worker = self._worker()
        self.intents = self._intents()
        self.saga = self._saga()
        self.audit = AuditLog(folder / "audit.jsonl")
        self.folder = folder

    # -- the program

    def _worker(self) -> eo.Worker:
        worker = eo.Worker(self.broker, store=self.store, name="billing")

        @worker.handler("orders", type="order.paid", retry=eo.Retry(1))
        def paid(message: eo.Message[dict[str, Any]]) -> None:
            raise ConnectionError("the ledger at ledger.internal did not answer")

        return worker

    def _intents(self) -> eo.Intents:
        intents = eo.Intents(self.store, scope="billing")

        @intents.operation("twilio", "sms", without_key="at-most-once", returns=dict[str, Any])
        def sms(intent: eo.Intent[dict[str, Any]]) -> Any:
            if intent.request["to"].startswith("+49"):
                raise TimeoutError("no answer")
            return {"sid": "SM1"}

        self.sms = sms
        return intents

    def _saga(self) -> eo.Saga[dict[str, Any]]:
        saga = eo.Saga("order-fulfilment", self.store, input=dict[str, Any])
        once = eo.Retry(1)

        @saga.step()
        def reserve(order: dict[str, Any]) -> str:
            return "shelf 7"

        @reserve.compensate(retry=once)
        def release(order: dict[str, Any], done: eo.Done) -> None:
            pass

        @saga.step()
        def charge(order: dict[str, Any]) -> dict[str, Any]:
            if order["kind"] == "unknown":
                raise eo.InDoubt("the bank hung up in the middle")
            return {"charge": "ch_1", "amount": order["amount"]}

        @charge.compensate(retry=once)
        def refund(order: dict[str, Any], done: eo.Done) -> None:
            if order["kind"] == "stuck":
                raise ConnectionError("the bank is closed")

        @saga.step()
        def ship(order: dict[str, Any]) -> str:
            if order["kind"] in ("declined", "stuck"):
                raise ValueError("no carrier goes there")
            return "parcel 99"

        return saga

    # -- its past

    def live(self) -> World:
        self._records()
        self._calls()
        self._sagas()
        self._outbox()
        self._dead_letters()
        for by, action, target, outcome, detail in AUDIT_ENTRIES:
            self.audit.record(action, target, by=by, outcome=outcome, detail=detail)
        return self

    def _records(self) -> None:
        port = self.store.runtime.admin_port()
        from effectonce.core.run_sync import run_sync

        def settled(scope: str, key: str, state: Any, **more: Any) -> None:
            owner = bytes([len(key) % 250 + 1]) * 16
            (answer,) = run_sync(port.run([Claim(scope, key, owner, 30 * SECOND, 86_400 * 30 * SECOND)]))
            if state != "claimed":
                run_sync(port.run([Settlement(scope, key, owner, answer.token, state, 86_400 * 30 * SECOND, **more)]))

        settled("charge-card", f"pay_{SCRIPT}\r\n\x1b[31m", "done", result=f'1"{SCRIPT}"'.encode())
        for n in range(60):
            settled("charge-card", f"pay_{n:04}", "done", result=b'1{"receipt":"rc_%d","amount":4200}' % n)
        for n in range(24):
            settled("orders/order.paid/billing", f"order-{1000 + n}", "done", result=b"1null")
        settled(
            "charge-card",
            "pay_declined",
            "failed",
            error=b'1{"code":"permanent-failure","type":"shop:Declined","message":"card 4242 declined"}',
        )
        settled("charge-card", "pay_running", "claimed")
        settled("charge-card", "pay_released", "free")
        settled("charge-card", "pay_doubtful", "in_doubt")

    def _calls(self) -> None:
        self.sms({"to": "+441632960001", "text": "paid"}, key="order-1001")
        for n in (7, 9):
            try:
                self.sms({"to": f"+4930{n}", "text": "Your parcel is on its way"}, key=f"order-10{n}")
            except eo.EffectOnceError:
                pass

    def _sagas(self) -> None:
        for number, kind in enumerate(("good", "good", "unknown", "declined", "stuck"), start=2001):
            try:
                self.saga.run(f"order-{number}", {"kind": kind, "amount": 4200, "card": "tok_secret_of_operators"})
            except eo.EffectOnceError:
                pass
        self.saga.start("order-2006", {"kind": "good", "amount": 100})

    def _outbox(self) -> None:
        self.store.migrate()
        path = self.url.removeprefix("sqlite:///")
        with sqlite3.connect(path) as connection:
            for n in range(6):
                key, line = f"order-{1000 + n}", f"customer-{n % 3}"
                message = eo.Message(type="order.paid", data={"order": 1000 + n}, key=key, ordering_key=line)
                eo.Outbox(to="shipping").send(connection, message)
            connection.commit()
            now = time.time_ns() // 1000
            connection.execute(
                "UPDATE effectonce_outbox SET state = 'parked', attempts = 10, created_at = ?, "
                "error = 'message of 300000 bytes is over the limit of 262144' WHERE seq IN (2, 5)",
                (now - 1800 * SECOND,),
            )
        connection.close()

    def _dead_letters(self) -> None:
        messages = [eo.Message(type="order.paid", data={"order": n}, key=f"order-{n}") for n in (3001, 3002, 3003)]

        async def work() -> None:
            await self.worker.check()
            await self.broker.apublish("orders", messages)
            serving = asyncio.create_task(self.worker.serve())
            queue = eo.DeadLetterQueue(self.worker, "orders")
            while await queue.acount() < len(messages):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            self.worker.stop()
            await serving
            await self.broker.aclose()
            await self.store.aclose()

        asyncio.run(work())

    def sources(self) -> Sources:
        return Sources(workers=[self.worker], intents=[self.intents], sagas=[self.saga], audit=self.audit)


if __name__ == "__main__":
    world = World(Path(sys.argv[1])).live()
    world.store.close()
    print(f"effectonce dashboard --store {world.url}")
