# ruff: noqa
# expect file: EO201
from fastapi import BackgroundTasks, FastAPI
from shop_private.payments import handle_event

app = FastAPI()


@app.post("/webhooks/payments")
async def paid(event: dict, background_tasks: BackgroundTasks):
    background_tasks.add_task(handle_event, event)
    return {"ok": True}
