# ruff: noqa
"""Procrastinate: tasks on PostgreSQL."""

import procrastinate
import psycopg
from square.client import Client

app = procrastinate.App(connector=procrastinate.PsycopgConnector())
blueprint = procrastinate.Blueprint()
square = Client(access_token="token")


@app.task(queue="payments", retry=5)
def capture(order_id: str, amount: int):  # expect: P11, EO303
    square.payments.create_payment({"source_id": "cnon:ok", "amount_money": {"amount": amount, "currency": "EUR"}})


@app.task(queue="payments", retry=5)
def capture_keyed(order_id: str, amount: int):  # expect: clean
    square.payments.create_payment(
        {
            "source_id": "cnon:ok",
            "idempotency_key": f"capture-{order_id}",
            "amount_money": {"amount": amount, "currency": "EUR"},
        }
    )


@blueprint.task(name="audit")
async def audit(entry: dict):  # expect: P11
    async with await psycopg.AsyncConnection.connect("dbname=shop") as conn:
        await conn.execute("INSERT INTO audit_log (actor, action) VALUES (%(actor)s, %(action)s)", entry)


@app.periodic(cron="0 3 * * *")
@app.task(pass_context=True)
async def sweep(context, timestamp: int):  # expect: clean
    async with await psycopg.AsyncConnection.connect("dbname=shop") as conn:
        await conn.execute("DELETE FROM carts WHERE expires_at < now()")
