# ruff: noqa
# expect file: clean
from fastapi import BackgroundTasks, FastAPI
from shop_private.sockets import manager

app = FastAPI()


@app.post("/webhooks/prices")
async def price(event: dict, background_tasks: BackgroundTasks):
    background_tasks.add_task(manager.broadcast, event)
    return {"ok": True}
