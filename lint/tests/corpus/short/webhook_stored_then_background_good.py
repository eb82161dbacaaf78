# ruff: noqa
# expect file: clean
import psycopg
from fastapi import BackgroundTasks, FastAPI

app = FastAPI()


def settle(event_id):
    with psycopg.connect("dbname=shop") as conn:
        conn.execute("UPDATE orders SET status = 'paid' FROM webhook_events e WHERE e.id = %s", (event_id,))


@app.post("/webhooks/payments")
async def paid(event: dict, background: BackgroundTasks):
    with psycopg.connect("dbname=shop") as conn:
        conn.execute(
            "INSERT INTO webhook_events (id, body) VALUES (%s, %s) ON CONFLICT DO NOTHING", (event["id"], str(event))
        )
    background.add_task(settle, event["id"])
    return {"ok": True}
