# ruff: noqa
# expect file: EO201
import psycopg
from fastapi import BackgroundTasks, FastAPI

app = FastAPI()


def settle(event):
    with psycopg.connect("dbname=shop") as conn:
        conn.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (event["order_id"],))


@app.post("/webhooks/payments")
async def paid(event: dict, background: BackgroundTasks):
    background.add_task(settle, event)
    return {"ok": True}
